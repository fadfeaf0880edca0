"""Sandbox pods on a test cluster's node, made as the broker makes them, and reached from here."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from hack.cluster.images.harnesses import HARNESSES
from hack.cluster.images.sandbox_runtime import SANDBOX_RUNTIME, sandbox_runtime_image
from hack.cluster.layout import ROOT
from seatrial_api.sandbox_token import ALGORITHM, METHODS, Method, Phase, SandboxClaims
from seatrial_api.sandboxd_config import DEFAULT_PORT
from seatrial_api.spec.topology import Resources
from seatrial_api.world_image import WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.sandbox_pod import SandboxPlan, named, sandbox_pod
from seatrial_operator.sandboxes.core.failures import Failure, failure_of
from seatrial_operator.sandboxes.tokens import TokenSigner
from tests import relay_into_node
from tests.brokers import Namespace

_SMALL = Resources(
    requests={"cpu": "20m", "memory": "64Mi"}, limits={"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
)
_PROCESSES = 64
_TOKEN_SECONDS = 3000.0
_READY_SECONDS = 240

type Object = dict[str, Any]


@dataclass(slots=True)
class SandboxPods:
    """A namespace of sandboxes that are made as the broker makes them; a `SandboxSource` over those that exist."""

    cluster: Cluster
    namespace: Namespace
    signer: TokenSigner = field(default_factory=lambda: TokenSigner(Ed25519PrivateKey.generate(), _TOKEN_SECONDS))
    _relays: list[subprocess.Popen[str]] = field(default_factory=list)
    _folders: list[Path] = field(default_factory=list)

    def create(
        self, name: str, image: str, *, plan: Object | None = None, twins: Sequence[str] = (), **spec: Any
    ) -> None:
        """Make a world and one sandbox of it, both of this name; does not wait.

        Args:
            name: Of the WorldImage and its pod.
            image: Image of the world, which the node has.
            plan: Changes to what sandboxes are made of.
            twins: More sandboxes of the world, whose tools answer alike: they have the same user.
            spec: Fields of the WorldImage.
        """
        self.namespace.world(name, image=image, **spec)
        found = self.namespace.get("worldimage", name)
        world = WorldImage.model_validate(
            {key: found[key] for key in ("apiVersion", "kind", "spec")}
            | {"metadata": {"name": name, "namespace": self.namespace.name}}
        )
        max_processes = _PROCESSES * (1 + len(twins))  # the kernel counts those of a user
        config = SandboxesConfig(
            image=SANDBOX_RUNTIME,
            harnesses_image=HARNESSES,
            resources=_SMALL,
            sidecar_resources=_SMALL,
            max_processes=max_processes,
        )
        facts: Object = {"lifetime_seconds": 3600.0, "runtime_class": None, "has_image_volumes": True, **(plan or {})}
        made_of = SandboxPlan(config=config, public_key=self.signer.public_key, **facts)
        pod = named(sandbox_pod(world, found["metadata"]["uid"], image, made_of), name)
        pod["metadata"]["namespace"] = self.namespace.name
        self.cluster.apply(pod, *({**pod, "metadata": {**pod["metadata"], "name": twin}} for twin in twins))

    def ready(self, name: str, trial: str = "trial-1") -> "SandboxPod":
        """A sandbox, once it is ready.

        Raises:
            AssertionError: if it does not become so, with what is known of it.
        """
        self.await_ready(name)
        pod = self.namespace.get("pod", name)
        return SandboxPod(pod, self._address(pod["status"]["podIP"]), self.signer, trial)

    def await_ready(self, *names: str) -> None:
        """Wait until sandboxes are ready.

        Raises:
            AssertionError: if one does not become so, with what is known of each, and of the node.
        """
        wait = ["wait", "--for=condition=Ready", f"--timeout={_READY_SECONDS}s"]
        try:
            self.cluster.kubectl("-n", self.namespace.name, *wait, *(f"pod/{name}" for name in names))
        except CommandError as error:
            node = self.cluster.kubectl("describe", "node")
            raise AssertionError("\n".join([str(error), *map(self.story, names), node])) from error

    def story(self, name: str) -> str:
        """What Kubernetes and the containers of a pod say."""
        told = [self.cluster.kubectl("-n", self.namespace.name, "describe", "pod", name)]
        spec = self.namespace.get("pod", name)["spec"]
        for one in [*spec["initContainers"], *spec["containers"]]:
            with suppress(CommandError):
                said = self.cluster.kubectl("-n", self.namespace.name, "logs", name, "-c", one["name"], "--tail=30")
                told.append(f"--- {one['name']}\n{said}")
        return "\n".join(told)

    def failure(self, name: str) -> Failure:
        """What the broker would say of a sandbox that fails.

        Raises:
            AssertionError: if it does not.
        """
        wait = ["wait", "--for=jsonpath={.status.phase}=Failed", f"--timeout={_READY_SECONDS}s", f"pod/{name}"]
        self.cluster.kubectl("-n", self.namespace.name, *wait)
        failure = failure_of(name, self.namespace.get("pod", name)["status"])
        assert failure is not None, self.story(name)
        return failure

    async def claim(self, world: str, trial_id: str) -> "SandboxPod":
        """The sandbox of this name."""
        return self.ready(world, trial_id)

    async def release(self, sandbox: "SandboxPod") -> None:
        """Delete its pod."""
        self.cluster.kubectl("-n", self.namespace.name, "delete", "pod", sandbox.name, "--wait=false")

    def delete_at_once(self, sandbox: "SandboxPod") -> None:
        """Delete its pod without a moment's grace; nothing if it is gone."""
        words = ["delete", "pod", sandbox.name, "--force", "--grace-period=0", "--ignore-not-found", "--wait=false"]
        self.cluster.kubectl("-n", self.namespace.name, *words)

    def close(self) -> None:
        """End the relays, and remove their sockets."""
        for relay in self._relays:
            relay.communicate()  # which closes its input
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _address(self, ip: str) -> str:
        """Where from this machine a sandbox answers."""
        self._folders.append(Path(tempfile.mkdtemp(prefix="seatrial-pod-")))
        path = self._folders[-1] / "sandboxd.sock"
        words = [sys.executable, str(relay_into_node.__file__), str(path), ip, str(DEFAULT_PORT)]
        inside = self.cluster.inside(*words)
        relay = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._relays.append(relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == "ready\n"
        return f"unix:{path}"


@contextmanager
def sandbox_pods(node: Cluster, name: str, *archives: Path) -> Iterator[SandboxPods]:
    """A namespace that Kubernetes holds to the restricted standard, deleted when the block ends.

    Args:
        node: Where its sandboxes run.
        name: Of the namespace.
        archives: Images of worlds and their servers, which the node learns of.
    """
    for archive in (sandbox_runtime_image(), *archives):
        node.load(archive)
    node.apply_crds(ROOT / "crds")
    namespace = Namespace(node, name)
    namespace.make()
    pods = SandboxPods(node, namespace)
    try:
        yield pods
    finally:
        pods.close()
        namespace.remove()


@contextmanager
def runtime_class(node: Cluster, name: str, handler: str) -> Iterator[None]:
    """What pods may ask for by name to be run by a handler of the node's."""
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    node.apply({**kind, "metadata": {"name": name}, "handler": handler})
    try:
        yield
    finally:
        node.kubectl("delete", "runtimeclass", name)


@dataclass(slots=True)
class SandboxPod:
    """A ready sandbox."""

    pod: Object
    address: str
    signer: TokenSigner
    trial: str

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Uid of the pod."""
        return str(self.pod["metadata"]["uid"])

    @property
    def daemon_pid(self) -> int:
        """This machine's number of its `sandboxd`."""
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_daemon = b"seatrial_sandbox.daemon\0" in (place / "cmdline").read_bytes()
                if is_daemon and self.uid in (place / "cgroup").read_text():
                    return int(place.name)
        raise LookupError(f"pod {self.name} runs no sandboxd")

    def token(self, phase: Phase) -> str:
        """A good token of a phase, as the broker signs it."""
        return self.signer.sign(self.uid, self.trial, phase, time.time())

    def forged(
        self, *, methods: Iterable[Method] | None = None, age: float = 0.0, trial: str = "", sandbox: str = ""
    ) -> Callable[[Phase], str]:
        """Tokens that are signed by the right key and say something else."""

        def token(phase: Phase) -> str:
            issued = int(time.time() - age)
            claims = SandboxClaims(
                sandbox=sandbox or self.uid,
                trial=trial or self.trial,
                issued_at=issued,
                expires_at=issued + 600,
                phase=phase,
                methods=frozenset(methods or METHODS[phase]),
            )
            return jwt.encode(claims.payload(), self.signer.private_key, algorithm=ALGORITHM)

        return token


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that a trial was given, as a stand-in of the broker holds it."""

    pods: SandboxPods
    pod: SandboxPod
    kill_with: Callable[[SandboxPods, SandboxPod], None] = SandboxPods.delete_at_once
    """How it ends before its time; as somebody would with kubectl, unless told."""

    @property
    def name(self) -> str:
        """What its tokens are made out for."""
        return self.pod.uid

    @property
    def address(self) -> str:
        """Where from here its daemon answers."""
        return self.pod.address

    def token(self, phase: Phase) -> str:
        """A good token of a phase."""
        return self.pod.token(phase)

    def kill(self) -> None:
        """End it at once."""
        self.kill_with(self.pods, self.pod)

    def stop(self) -> None:
        """End it, and leave nothing."""
        self.pods.delete_at_once(self.pod)
