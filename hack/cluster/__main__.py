"""A real Kubernetes on this machine.

python -m hack.cluster up [--grade node] [--name dev]
python -m hack.cluster down [--name dev]
python -m hack.cluster status [--name dev]
python -m hack.cluster shell [--name dev]     inside the node: its network, processes and mounts
"""

import argparse
import os
import sys

from hack.cluster.errors import ClusterError
from hack.cluster.handle import Cluster
from hack.cluster.layout import BIN, INSIDE, Grade
from hack.cluster.machine import require


def up(cluster: Cluster, grade: Grade) -> None:
    """Start the copy unless it runs."""
    if cluster.find() is None:
        require(grade)
        cluster.stop()  # whatever an earlier one left
        cluster.launch(grade)
    status(cluster)


def status(cluster: Cluster) -> None:
    """Tell what runs, and how to talk to it."""
    copy = cluster.find()
    if copy is None:
        logs = cluster.layout.logs
        print(
            f"no cluster runs here; the logs of the last one are in {logs}" if logs.exists() else "no cluster runs here"
        )
        return
    print(f"a cluster of grade {copy.grade} runs; to use it:")
    print(f"  export KUBECONFIG={cluster.kubeconfig} PATH={BIN}:$PATH")


def shell(cluster: Cluster) -> None:
    """Become a shell inside the node."""
    os.environ |= {"PATH": f"{BIN}:{os.environ['PATH']}", "KUBECONFIG": f"{INSIDE}/pki/admin.kubeconfig"}
    words = cluster.inside(os.environ.get("SHELL", "/bin/sh"))
    os.execvp(words[0], words)  # noqa: S606  the caller's own shell, and nothing else


def main() -> int:
    """Do what was asked; 2 if this machine or the cluster does not let us."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["up", "down", "status", "shell"])
    parser.add_argument("--grade", type=Grade, choices=list(Grade), default=Grade.NODE)
    parser.add_argument("--name", default="dev", help="of the copy; any number run beside each other")
    arguments = parser.parse_args()
    cluster = Cluster.named(arguments.name)
    try:
        match arguments.action:
            case "up":
                up(cluster, arguments.grade)
            case "down":
                cluster.stop()
            case "shell":
                shell(cluster)
            case _:
                status(cluster)
    except ClusterError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
