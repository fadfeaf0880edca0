"""Names and places: what a grade is, where a copy keeps its files, which addresses a node uses."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""The checkout."""
CACHE: Final = ROOT / ".cache/cluster"
"""What `make` builds once for all copies."""
BIN: Final = CACHE / "bin"
SHARE: Final = CACHE / "share"
"""Manifests that come with the binaries: KubeRay's CRDs, KWOK's stages."""


class Grade(StrEnum):
    """How much of a cluster there is."""

    CONTROL_PLANE = "control-plane"
    """etcd and the API server: schemas, admission, server-side apply, watches."""
    CONTROLLERS = "controllers"
    """Objects are acted upon, and nodes made by `fake_nodes` pretend to run pods."""
    NODE = "node"
    """Pods run."""

    def includes(self, other: "Grade") -> bool:
        """Whether this grade has all that the other has."""
        order = list(Grade)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Layout:
    """Files of one copy, all below one folder."""

    folder: Path

    @cached_property
    def kubeconfig(self) -> Path:
        """The administrator's, certificates included, for use from outside."""
        return self.folder / "kubeconfig"

    @cached_property
    def logs(self) -> Path:
        """One file per process."""
        return self.folder / "logs"

    @cached_property
    def pki(self) -> Path:
        """Keys, certificates and the kubeconfigs of the cluster's own parts."""
        return self.folder / "pki"

    @cached_property
    def state(self) -> Path:
        """What `Copy` says, as JSON; there once the copy is ready."""
        return self.folder / "copy.json"

    def pid(self, name: str) -> Path:
        """Holds the PID of a process, as the copy's own namespaces count."""
        return self.folder / f"{name}.pid"

    def log(self, name: str) -> Path:
        """Log of one process."""
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Make the folders."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        self.pki.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the API server listens, and the ranges that it hands out."""

    bind: str
    """Address that the API server binds."""
    port: int
    advertised: str
    """Address under which pods find the API server."""
    services: str = "10.96.0.0/16"
    kubernetes_service: str = "10.96.0.1"

    @property
    def url(self) -> str:
        """The API server, as the cluster's own parts reach it."""
        return f"https://127.0.0.1:{self.port}"


NODE_ADDRESS: Final = "192.168.77.1"
"""The node's, in its own network namespace: the same in every copy, and seen by no other."""
NODE_NAME: Final = "node"
POD_RANGE: Final = "10.244.0.0/24"
DNS_ADDRESS: Final = "10.96.0.10"
INSIDE: Final = Path("/run/node")
"""The copy's folder as the node sees it: short, and the same in every copy."""

NODE: Final = Addresses(bind="0.0.0.0", port=6443, advertised=NODE_ADDRESS)  # noqa: S104  all of the node's own


def on_loopback(port: int) -> Addresses:
    """Addresses of a copy without a node of its own."""
    # The API server insists on advertising an address that is not the loopback, even where no pod asks for it.
    documentation = "192.0.2.1"
    return Addresses(bind="127.0.0.1", port=port, advertised=documentation)
