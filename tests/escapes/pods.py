"""Sandbox pods to try to get out of, and what stands around them on their node."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from hack.cluster.images.samples import BUSYBOX
from hack.cluster.images.worlds import OFFICE
from seatrial_api.sandbox_token import Phase
from seatrial_api.sandboxd_config import DEFAULT_PORT
from seatrial_api.world_image import WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.sandbox_policy import sandbox_policy
from seatrial_rollout.environment.remote import RemoteSandbox
from tests.escapes.arena import Arena
from tests.escapes.attempt import Place
from tests.escapes.places import Outside, told
from tests.sandbox_pods import SandboxPods

NAMES = ("attacker", "neighbour")
SERVICES = {"driver": 8090, "engine": 8000, "judge": 8093, "broker": 8092}
"""Pods that stand in for those of a run and of the system, and where they listen."""
CALLERS = {"trial-host": dict(SandboxesConfig().clients), "anybody": {}}
"""Pods that call sandboxes, by their labels."""
PYTHON = "/opt/seatrial/bin/python3"
_LIMITS = {"memory_mb": 1024, "file_mb": 2048}


def create(pods: SandboxPods) -> None:
    """Make two sandboxes with the policies of their worlds, and what they may not reach; does not wait."""
    space = pods.namespace.name
    for name in NAMES:
        pods.create(name, OFFICE)
        pods.cluster.apply(policy(pods, name))
    for name, port in SERVICES.items():
        script = f"mkdir -p /tmp/www; echo hello > /tmp/www/index.html; httpd -f -p {port} -h /tmp/www"
        item = _pod(name, space, {"app": name}, script)
        item["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
        pods.cluster.apply(item)
    for name, labels in CALLERS.items():
        pods.cluster.apply(_pod(name, space, labels, "sleep 3600"))


def policy(pods: SandboxPods, name: str) -> dict[str, Any]:
    """The policy of a world, as the broker applies it."""
    found = pods.namespace.get("worldimage", name)
    world = WorldImage.model_validate(
        {key: found[key] for key in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": name, "namespace": pods.namespace.name}}
    )
    made = sandbox_policy(world, found["metadata"]["uid"], SandboxesConfig())
    return {**made, "metadata": {**made["metadata"], "namespace": pods.namespace.name}}


def address(pods: SandboxPods, name: str) -> str:
    """IP of a pod, once it is ready."""
    pods.cluster.kubectl("-n", pods.namespace.name, "wait", "--for=condition=Ready", "--timeout=240s", f"pod/{name}")
    return str(pods.namespace.get("pod", name)["status"]["podIP"])


def reaches(pods: SandboxPods, caller: str, target: str, port: int) -> bool:
    """Whether one pod reaches another, once both are ready."""
    address(pods, caller)
    words = ["sh", "-c", f"nc -w 3 {address(pods, target)} {port} </dev/null >/dev/null 2>&1 && echo reached || true"]
    return "reached" in pods.cluster.kubectl("-n", pods.namespace.name, "exec", caller, "--", *words)


@asynccontextmanager
async def pod_arena(pods: SandboxPods, folder: Path, there: Outside) -> AsyncIterator[Arena]:
    """The two sandboxes."""
    async with AsyncExitStack() as stack:
        started = []
        for name in NAMES:
            one = await RemoteSandbox.claim(pods, name, f"trial-{name}")
            stack.push_async_callback(one.stop, delete=False)
            started.append(one)
        attacker, neighbour = started
        await attacker.client.snapshot(None)
        own, beside = pods.ready(NAMES[0], "trial-attacker"), pods.namespace.get("pod", NAMES[1])
        node = beside["status"]["hostIP"]
        facts = (
            there.facts()
            | _LIMITS
            | {
                "sandboxd": f"127.0.0.1:{DEFAULT_PORT}",
                "name": own.uid,
                "trial": own.trial,
                "public_key": pods.signer.public_key,
                "token": own.token(Phase.AGENT),
                "loopback": ["127.0.0.1:10248", "127.0.0.1:6443", "127.0.0.1:2379"],
                "services": [f"{address(pods, name)}:{port}" for name, port in SERVICES.items()],
                "kubernetes": ["10.96.0.1:443", f"{node}:6443", f"{node}:10250"],
                "neighbour": {
                    "pids": _processes(beside["metadata"]["uid"]),
                    "files": [f"/var/lib/kubelet/pods/{beside['metadata']['uid']}", "/run/containerd"],
                    "sockets": ["/run/containerd/containerd.sock", "/var/lib/kubelet/pod-resources/kubelet.sock"],
                    "addresses": [f"{beside['status']['podIP']}:{DEFAULT_PORT}"],
                },
            }
        )

        async def findings() -> Sequence[str]:
            return await told(attacker)

        yield Arena(Place.POD, attacker, neighbour, folder, facts, findings, [there.folder], PYTHON)


def _processes(uid: str) -> list[int]:
    """A pod's processes as this machine numbers them, whose numbers are far from those in a sandbox."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if uid.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _pod(name: str, namespace: str, labels: dict[str, str], script: str) -> dict[str, Any]:
    """A pod with a shell, as restricted as its namespace asks for."""
    container: dict[str, Any] = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
