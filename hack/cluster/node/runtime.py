"""containerd: its configuration, and images from archives."""

from pathlib import Path

from hack.cluster.layout import BIN, INSIDE, POD_RANGE
from hack.cluster.processes import Command

SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/pause:1"
GVISOR = "runsc"
"""Handler of a RuntimeClass, where gVisor was built: `make cluster-gvisor`."""

_CONFIG = f"""\
version = 3
root = "{INSIDE}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{INSIDE}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{BIN}/runc"
Root = "/run/containerd/runc"
"""

_GVISOR = f"""\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{GVISOR}]
runtime_type = "io.containerd.runsc.v1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{GVISOR}.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{INSIDE}/runsc.toml"
"""
_GVISOR_CONFIG = """\
[runsc_config]
platform = "systrap"
"""

# One routed veth pair per pod: all traffic passes the forward hook, where Services and policies are applied.
_NETWORK = f"""\
{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "ptp", "ipMasq": false, "ipam": {{"type": "host-local", "dataDir": "/run/cni",
    "ranges": [[{{"subnet": "{POD_RANGE}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"""

SYSTEM_PATH = f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"


def containerd() -> Command:
    """The runtime; writes what it reads."""
    config = INSIDE / "containerd.toml"
    config.write_text(_CONFIG + (_GVISOR if has_gvisor() else ""))
    (INSIDE / "runsc.toml").write_text(_GVISOR_CONFIG)
    network = INSIDE / "cni" / "10-pods.conflist"
    network.parent.mkdir()
    network.write_text(_NETWORK)
    return Command("containerd", (str(BIN / "containerd"), "--config", str(config)), env={"PATH": SYSTEM_PATH})


def has_gvisor() -> bool:
    """Whether pods may ask for gVisor, by a RuntimeClass with its handler."""
    return all((BIN / name).exists() for name in ("runsc", "containerd-shim-runsc-v1"))


def is_up() -> bool:
    """Whether the runtime listens."""
    return Path(SOCKET).is_socket()


def importing(archive: Path) -> tuple[str, ...]:
    """Command that loads an OCI archive, so that pods can use its image by name."""
    return (*_ctr(), "images", "import", "--local", str(archive))


def pushing(image: str, reference: str) -> tuple[tuple[str, ...], ...]:
    """Commands that copy an image that the node has into a registry that speaks plain HTTP."""
    images = (*_ctr(), "images")
    return (*images, "tag", "--force", image, reference), (*images, "push", "--plain-http", reference)


def _ctr() -> tuple[str, ...]:
    return (str(BIN / "ctr"), "--address", SOCKET, "--namespace", "k8s.io")
