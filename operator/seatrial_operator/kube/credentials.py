"""How to reach the API server and what to show it: a pod's service account, else a kubeconfig."""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seatrial_api.errors import InvalidInputError

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_KUBECONFIG = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An API server, and who we are to it."""

    server: str
    """Its URL, without a slash at the end."""
    tls: ssl.SSLContext
    """Whom to trust, and our certificate if we have one."""
    token: Callable[[], str] | None = None
    """Gives the bearer token as it is now: the kubelet renews that of a pod. None if there is none."""
    proxy: str | None = None
    """URL of the proxy on the way to the server."""

    def headers(self) -> dict[str, str]:
        """What tells a request's sender."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token()}"}


def is_in_cluster() -> bool:
    """Whether this process runs in a pod and is to use the pod's own rights; `KUBECONFIG` overrules that."""
    return "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ


def find_credentials() -> Credentials:
    """Those of the pod's service account, else of the files in `KUBECONFIG`, else of `~/.kube/config`.

    Raises:
        InvalidInputError: if there are none, or none that we can use.
    """
    try:
        if is_in_cluster():
            return of_service_account(_SERVICE_ACCOUNT, os.environ)
        named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
        return of_kubeconfig(named or [_DEFAULT_KUBECONFIG])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        msg = f"no credentials for a Kubernetes API server: {exc}; run in a pod, or set KUBECONFIG"
        raise InvalidInputError(msg) from exc


def of_service_account(folder: Path, environment: Mapping[str, str]) -> Credentials:
    """Those that the kubelet brings into a pod."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    return Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        tls=ssl.create_default_context(cafile=folder / "ca.crt"),
        token=_from_file(folder / "token"),
    )


def of_kubeconfig(paths: Sequence[Path]) -> Credentials:
    """Those of the current context; of several files, the first that has an entry wins, as with kubectl.

    Raises:
        InvalidInputError: if the context's user logs in by a program, which is for people and not for a process.
    """
    files = [(path.expanduser(), yaml.safe_load(path.expanduser().read_text(encoding="utf-8")) or {}) for path in paths]
    current = next((content["current-context"] for _, content in files if content.get("current-context")), "")
    context = _entry(files, "context", current).fields
    cluster, user = _entry(files, "cluster", context["cluster"]), _entry(files, "user", context["user"])
    if by_program := {"exec", "auth-provider"} & user.fields.keys():
        raise InvalidInputError(
            f"{user.place}: user {context['user']} logs in by `{min(by_program)}`, which this process does not run; "
            "give the user a `token` (kubectl create token) or a `client-certificate`"
        )
    return Credentials(
        server=cluster.fields["server"].rstrip("/"),
        tls=_tls(cluster, user),
        token=_token(user),
        proxy=cluster.fields.get("proxy-url"),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One named part of a kubeconfig."""

    place: Path
    fields: dict[str, Any]

    def data(self, name: str) -> bytes | None:
        """What is given within the file, or by a path beside it."""
        if text := self.fields.get(f"{name}-data"):
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as exc:
                raise ValueError(f"{self.place}: {name}-data is not base64: {exc}") from exc
        path = self.fields.get(name)
        return (self.place.parent / path).read_bytes() if path else None


def _entry(files: Sequence[tuple[Path, dict[str, Any]]], kind: str, name: str) -> _Entry:
    for place, content in files:
        for item in content.get(f"{kind}s") or []:
            if item["name"] == name:
                return _Entry(place, item.get(kind) or {})
    raise LookupError(f"{', '.join(str(place) for place, _ in files)}: there is no {kind} {name!r}")


def _token(user: _Entry) -> Callable[[], str] | None:
    if path := user.fields.get("tokenFile"):
        return _from_file(user.place.parent / path)
    token: str | None = user.fields.get("token")
    return None if token is None else lambda: token


def _from_file(path: Path) -> Callable[[], str]:
    def token() -> str:
        return path.read_text(encoding="utf-8").strip()

    token()  # or a file that is not there would be told at the first request, as if the server did not answer
    return token


def _tls(cluster: _Entry, user: _Entry) -> ssl.SSLContext:
    authority = cluster.data("certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.fields.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = user.data("client-certificate"), user.data("client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile(suffix=".pem") as both:  # OpenSSL takes them from a file alone
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context
