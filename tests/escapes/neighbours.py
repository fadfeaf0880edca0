"""Attempts against other sandboxes; whether the neighbour is unharmed is looked at after every attempt of any kind."""

from tests.escapes.attempt import Attempt, Category

SHARED_KEY = 0x5EA7
"""Of the neighbour's shared memory."""

ATTEMPTS = [
    Attempt(
        "kills a neighbour's processes",
        Category.NEIGHBOUR,
        "each(lambda pid: os.kill(pid, signal.SIGKILL), facts['neighbour']['pids'])",
        "ESRCH|EPERM",
        "a PID namespace and, in the local provider, a user of its own",
    ),
    Attempt(
        "reads a neighbour's files",
        Category.NEIGHBOUR,
        "each(read, facts['neighbour']['files'])",
        "ENOENT|EACCES",
        "a root of its own",
    ),
    Attempt(
        "calls a neighbour's sockets",
        Category.NEIGHBOUR,
        "each(lambda path: connect(socket.AF_UNIX, path), facts['neighbour']['sockets'])\n"
        "each(tcp, facts['neighbour']['addresses'])\n"
        "if not facts['neighbour']['sockets'] + facts['neighbour']['addresses']: raise SystemExit('nothing to call')\n",
        "ENOENT|EACCES|ENETUNREACH|ETIMEDOUT|EHOSTUNREACH",
        "a root and a network of its own; between pods, the policy",
    ),
    Attempt(
        "looks into a neighbour's shared memory",
        Category.NEIGHBOUR,
        f"attempt(lambda: call('shmget', {SHARED_KEY}, 4096, 0))\n"
        "attempt(lambda: read('/dev/shm/neighbour'))\n"
        "attempt(lambda: read('/tmp/neighbour'))\n",
        "ENOENT|EACCES",
        "an IPC namespace, `/dev/shm` and `/tmp` of its own",
    ),
]
