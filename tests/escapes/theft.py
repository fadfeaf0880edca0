"""Attempts to get at keys, tokens and files that are not the agent's."""

from tests.escapes.attempt import WITH_DAEMON, Attempt, Category

_GRPC = """
import grpc
def ask(method, token, request=b''):
    shown = [('authorization', f'Bearer {token}')] if token else []
    with grpc.insecure_channel(facts['sandboxd']) as channel:
        call = channel.unary_stream if method in ('Audit', 'Diff', 'Exec') else channel.unary_unary
        try:
            answer = call(f'/seatrial.v1.Sandboxd/{method}')(request, metadata=shown, timeout=20)
            return answer if isinstance(answer, bytes) else list(answer)
        except grpc.RpcError as exc:
            raise RefusedError(exc.code().name)
"""
_SIGNING = """
import base64, hashlib, hmac, json
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
def b64(data): return base64.urlsafe_b64encode(data).rstrip(b'=').decode()
def token(alg, sign, **more):
    said = {'aud': facts['name'], 'sub': facts['trial'], 'iat': int(time.time()), 'exp': int(time.time()) + 600,
            'phase': 'Verify', 'methods': ['Exec', 'Upload', 'Health', 'Freeze', 'Audit', 'Diff'], **more}
    body = b64(json.dumps({'alg': alg, 'typ': 'JWT'}).encode()) + '.' + b64(json.dumps(said).encode())
    return body + '.' + b64(sign(body.encode()))
public = facts['public_key'].encode()
mac = lambda body: hmac.new(public, body, hashlib.sha256).digest()
tokens = [token('none', lambda body: b''), token('HS256', mac), token('EdDSA', Ed25519PrivateKey.generate().sign),
          token('EdDSA', lambda body: b'\\0' * 64), '', 'x.y.z']
"""

ATTEMPTS = [
    Attempt(
        "reads the memory, environment and files of process 1",
        Category.THEFT,
        "each(read, ['/proc/1/environ', '/proc/1/mem', '/proc/1/maps', '/proc/1/fd', '/proc/1/cwd', '/proc/1/root'])",
        "EACCES|EPERM",
        "the first process is undumpable, or another user's",
    ),
    Attempt(
        "looks for secrets in every environment and command line",
        Category.THEFT,
        "def look():\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        for name in ('environ', 'cmdline'):\n"
        "            with contextlib.suppress(OSError), open(f'/proc/{pid}/{name}', 'rb') as file:\n"
        "                if pid != str(os.getpid()) and any(one.encode() in file.read() for one in facts['secrets']):\n"
        "                    return name\n"
        "    if any(one in os.environ.get(name, '') for one in facts['secrets'] for name in os.environ):\n"
        "        return 'its own environment'\n"
        "    raise RefusedError('none to be found')\n"
        "attempt(look)\n",
        "none to be found",
        "keys never enter a sandbox; its environment is made anew",
        plain=True,
    ),
    Attempt(
        "reads tokens of Kubernetes and of the broker",
        Category.THEFT,
        "each(read, ['/var/run/secrets/kubernetes.io/serviceaccount/token', '/run/secrets/kubernetes.io',"
        " '/var/run/secrets/seatrial.dev/broker/token', '/var/lib/kubelet/pki', '/etc/kubernetes/admin.conf'])",
        "ENOENT|EACCES",
        "sandbox pods hold no token",
    ),
    Attempt(
        "reads the machine's files",
        Category.THEFT,
        "each(read, facts['files'] + ['/etc/shadow', '/root/.ssh', '/root/.aws/credentials', '/root/.netrc'])",
        "ENOENT|EACCES",
        "a root of its own; only system and interpreter are there",
        plain=False,
    ),
    Attempt(
        "goes through the folders of processes outside",
        Category.THEFT,
        "each(read, [f'/proc/{pid}/{name}' for pid in facts['pids'] for name in ('root', 'environ', 'cwd')])",
        "ENOENT|EACCES",
        "a PID namespace of its own",
    ),
    Attempt(
        "forges tokens of sandboxd",
        Category.THEFT,
        _GRPC
        + _SIGNING
        + "each(lambda token: ask('Exec', token), tokens)\neach(lambda token: ask('Freeze', token), tokens)",
        "UNAUTHENTICATED",
        "tokens are signed with Ed25519; the pod has the public key alone, and takes no other algorithm",
        recorded="REFUSED  (Exec|Freeze): the token is not valid",
        places=WITH_DAEMON,
    ),
    Attempt(
        "uses a stolen token of its own phase to verify itself",
        Category.THEFT,
        _GRPC + "each(lambda method: ask(method, facts['token']), ['Freeze', 'Audit', 'Diff'])",
        "PERMISSION_DENIED",
        "a token is good for the calls of one phase",
        recorded="REFUSED  Freeze: the token of phase Agent does not allow",
        places=WITH_DAEMON,
    ),
]
