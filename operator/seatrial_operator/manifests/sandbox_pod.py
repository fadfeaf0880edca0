"""The pod of a sandbox: the world's image with `sandboxd` brought in, tool servers beside it, and no rights at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from seatrial_api.pods import ROLE_LABEL
from seatrial_api.quantity import parse_quantity
from seatrial_api.sandboxd_config import (
    CONFIG_VARIABLE,
    DEFAULT_PORT,
    UID_VARIABLE,
    HttpServer,
    SandboxdConfig,
    SandboxLimits,
    SandboxServer,
)
from seatrial_api.sandboxes import (
    GATEWAY_SERVER,
    REVISION_LABEL,
    SANDBOX_ROLE,
    SANDBOXD,
    START,
    STATE_LABEL,
    WORLD_LABEL,
)
from seatrial_api.spec.topology import Resources
from seatrial_api.world_image import WorldImage, WorldImageSpec
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.names import MANAGED_BY, Manifest, owner_reference
from seatrial_operator.manifests.pods import env_value
from seatrial_operator.manifests.sandbox_files import (
    HARNESSES,
    RUNTIME,
    Brought,
    files_copies,
    shared_mounts,
    starts_with_task,
    volumes,
    world_copy,
    world_mounts,
)
from seatrial_operator.manifests.worlds import pull_secret_name

WORLD_CONTAINER = "world"
OUR_SERVERS = ("filesystem", "sheets", "workbooks", "docs", "slides", "pdf", "mail", "chat", "calendar", "code")
_GROUP = 1000
_FIRST_USER = 100_000
_USERS = 1 << 28
_GRACE_SECONDS = 2
"""A sandbox has nothing to finish."""
_SLACK_SECONDS = 600
"""On top of the time that a sandbox may be warm and then a trial's; where no broker ends it, its node does."""
_HASH_CHARS = 16
_OUR_MEMORY_MB = 256
"""Of a container's memory, what no process of the agent's may take alone: beyond the limit all of them are killed."""
_DEFAULT_SIZE = "8Gi"
_COPIER = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_LAST_WORDS = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""Why a container ended is then in the pod's status, where the broker reads it."""


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """What a sandbox is made of besides its world."""

    config: SandboxesConfig
    public_key: str
    """What tokens are checked with, as PEM."""
    lifetime_seconds: float
    runtime_class: str | None
    has_image_volumes: bool


def sandbox_pod(world: WorldImage, uid: str, image: str, plan: SandboxPlan) -> Manifest:
    """A sandbox, its name still to be set.

    Args:
        world: The world.
        uid: Its `metadata.uid`.
        image: Its image, by digest.
        plan: The rest.
    """
    name, labels = world.metadata.name, {ROLE_LABEL: SANDBOX_ROLE, STATE_LABEL: "warm"}
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {**MANAGED_BY, **labels, WORLD_LABEL: name},
            "ownerReferences": [owner_reference("WorldImage", name, uid)],
        },
        "spec": {
            **_guards(plan),
            **_placement(plan.config),
            "imagePullSecrets": [{"name": world.spec.pull_secret or pull_secret_name(name)}],
            "initContainers": [*_copiers(world.spec, image, plan), *_tool_servers(world.spec, image, plan)],
            "containers": [_world_container(world.spec, image, plan)],
            "volumes": _volumes(world.spec, plan),
        },
    }
    manifest["metadata"]["labels"][REVISION_LABEL] = _digest(manifest)
    manifest["spec"]["activeDeadlineSeconds"] = int(2 * plan.lifetime_seconds) + _SLACK_SECONDS  # may change meanwhile
    return manifest


def revision_of(manifest: Manifest) -> str:
    """What tells one form of a world's sandboxes from another."""
    return str(manifest["metadata"]["labels"][REVISION_LABEL])


def named(manifest: Manifest, name: str) -> Manifest:
    """The same pod under a name of its own, and with a user of its own.

    The kernel counts processes, watches and keys by user: sandboxes with the same one would share what each may have.
    """
    user = _FIRST_USER + int.from_bytes(sha256(name.encode()).digest()[:8]) % _USERS
    security = {**manifest["spec"]["securityContext"], "runAsUser": user}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "name": name},
        "spec": {**manifest["spec"], "securityContext": security},
    }


def _guards(plan: SandboxPlan) -> Manifest:
    return {
        "restartPolicy": "Never",  # a container that was restarted has lost what its trial did
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"runtimeClassName": plan.runtime_class} if plan.runtime_class else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _FIRST_USER,
            "runAsGroup": _GROUP,
            "fsGroup": _GROUP,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _placement(config: SandboxesConfig) -> Manifest:
    """Where it may run, and how long it stays on a node that does not answer; by default that would be five minutes."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": config.node_lost_seconds}
    states = ("not-ready", "unreachable")
    return {
        **({"nodeSelector": dict(config.node_selector)} if config.node_selector else {}),
        "tolerations": [*config.tolerations, *({"key": f"node.kubernetes.io/{state}", **lost} for state in states)],
    }


def _world_container(spec: WorldImageSpec, image: str, plan: SandboxPlan) -> Manifest:
    # Where the image has a gateway of its own, that is what the world's resources are for.
    asked = Resources() if spec.mcp.kind == "Archipelago" else spec.resources
    resources = _resources(asked, plan.config.resources)
    probe = {"grpc": {"port": DEFAULT_PORT}}
    return {
        "name": WORLD_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **_LAST_WORDS,
        "command": list(SANDBOXD),
        "env": [
            *(env_value(name, value) for name, value in spec.env.items()),
            env_value(CONFIG_VARIABLE, _sandboxd(spec, plan, resources["limits"]).model_dump_json(by_alias=True)),
            {"name": UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "ports": [{"name": "sandboxd", "containerPort": DEFAULT_PORT}],
        "resources": resources,
        # What an agent writes is in volumes: bounded, seen by the audit, and the same after it was restored.
        "securityContext": {**_CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
        "startupProbe": _startup(probe, spec),
        "readinessProbe": {**probe, "periodSeconds": 15, "timeoutSeconds": 5},
        "volumeMounts": [
            *(one.mount(has_image_volumes=plan.has_image_volumes) for one, _ in _brought(spec, plan)),
            *world_mounts(spec),
        ],
    }


def _brought(spec: WorldImageSpec, plan: SandboxPlan) -> list[tuple[Brought, str]]:
    """What is brought into the world's container, and from which image."""
    harnesses = [(HARNESSES, plan.config.harnesses_image)] if spec.harnesses else []
    return [(RUNTIME, plan.config.image), *harnesses]


def _sandboxd(spec: WorldImageSpec, plan: SandboxPlan, limits: Mapping[str, str]) -> SandboxdConfig:
    memory_mb = int(parse_quantity(limits["memory"])) >> 20
    return SandboxdConfig(
        public_key=plan.public_key,
        workdir=spec.workdir,
        servers=_servers(spec),
        limits=SandboxLimits(
            processes=plan.config.max_processes, memory_mb=max(1, memory_mb // 2, memory_mb - _OUR_MEMORY_MB)
        ),
    )


def _servers(spec: WorldImageSpec) -> list[SandboxServer | HttpServer]:
    """What `sandboxd` serves to trials: nobody reaches a server but through it."""
    match spec.mcp.kind:
        case "Runtime":
            names = spec.mcp.servers or OUR_SERVERS
            return [SandboxServer(name=name, command="seatrial-mcp", args=[name]) for name in names]
        case "Sidecars":
            return [HttpServer(name=one.name, url=_beside(one.port, one.path)) for one in spec.mcp.sidecars]
        case "Archipelago":
            url = _beside(spec.mcp.port, "/mcp/")
            return [HttpServer(name=GATEWAY_SERVER, url=url, starts_with_task=starts_with_task(spec))]


def _beside(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def _tool_servers(spec: WorldImageSpec, image: str, plan: SandboxPlan) -> list[Manifest]:
    """Containers beside the world that serve its tools."""
    if spec.mcp.kind == "Archipelago":
        return [_gateway(spec, image, plan)]
    return [
        _tool_server(one.name, one.image, one.port, one.env, _resources(one.resources, default), spec)
        for one in spec.mcp.sidecars
        for default in [plan.config.sidecar_resources]
    ]


def _gateway(spec: WorldImageSpec, image: str, plan: SandboxPlan) -> Manifest:
    """The image as it was made, its own command included if the world names none."""
    resources = _resources(spec.resources, plan.config.resources)
    server = _tool_server(GATEWAY_SERVER, image, spec.mcp.port, spec.env, resources, spec)
    if not starts_with_task(spec):
        return server | ({"command": spec.mcp.command} if spec.mcp.command else {})
    del server["startupProbe"], server["readinessProbe"]  # whoever has told it the task waits for it
    mounts = [RUNTIME.mount(has_image_volumes=plan.has_image_volumes), *server["volumeMounts"]]
    return server | {"command": [*START, *spec.mcp.command], "volumeMounts": mounts}


def _tool_server(
    name: str, image: str, port: int, env: Mapping[str, str], resources: Manifest, spec: WorldImageSpec
) -> Manifest:
    """A tool server: started before the world, ended after it, and started again if it ends while nobody uses it."""
    probe = {"tcpSocket": {"port": port}}
    return {
        "name": f"mcp-{name}"[:63].rstrip("-"),
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **_LAST_WORDS,
        "restartPolicy": "Always",
        "env": [env_value(key, value) for key, value in env.items()],
        "ports": [{"containerPort": port}],
        "resources": resources,
        "securityContext": _CONTAINER_SECURITY,
        "startupProbe": _startup(probe, spec),
        "readinessProbe": {**probe, "periodSeconds": 15, "timeoutSeconds": 5},
        "volumeMounts": shared_mounts(spec),
    }


def _copiers(spec: WorldImageSpec, image: str, plan: SandboxPlan) -> list[Manifest]:
    """Init containers that bring files to where they are needed."""
    has_image_volumes = plan.has_image_volumes
    runtime = RUNTIME.mount(has_image_volumes=has_image_volumes)
    files = files_copies(spec, runtime, has_image_volumes=has_image_volumes)
    return [
        *([] if has_image_volumes else _brought_copiers(spec, plan, runtime)),
        _copier("world", image, world_copy(spec, runtime)),
        *(
            # An image that is mounted need not be able to run anything.
            _copier(f"files-{index}", image if has_image_volumes else source, what)
            for index, (source, what) in enumerate(files)
        ),
    ]


def _brought_copiers(spec: WorldImageSpec, plan: SandboxPlan, runtime: Manifest) -> list[Manifest]:
    (_, image), *others = _brought(spec, plan)
    return [
        _copier("runtime", image, RUNTIME.copy()),  # its image can run it; the others need what it has copied
        *(_copier(one.name.removeprefix("seatrial-"), image, one.copy(runtime)) for one, image in others),
    ]


def _copier(name: str, image: str, what: Manifest) -> Manifest:
    about = {"name": f"seatrial-{name}", "image": image, "imagePullPolicy": "IfNotPresent", **_LAST_WORDS}
    return {**about, **what, "resources": _COPIER, "securityContext": _CONTAINER_SECURITY}


def _volumes(spec: WorldImageSpec, plan: SandboxPlan) -> list[Manifest]:
    brought = [one.volume(image, has_image_volumes=plan.has_image_volumes) for one, image in _brought(spec, plan)]
    limits = {**plan.config.resources.limits, **spec.resources.limits}
    size = limits.get("ephemeral-storage", _DEFAULT_SIZE)
    return [*brought, *volumes(spec, size, has_image_volumes=plan.has_image_volumes)]


def _resources(asked: Resources, default: Resources) -> Manifest:
    """The world's, and the default for each resource that it does not name; limits never below requests."""
    requests = {name: amount for name, amount in default.requests.items() if name not in asked.limits}
    limits = {**default.limits, **asked.limits}
    lifted = {
        name: amount
        for name, amount in asked.requests.items()
        if name in limits and parse_quantity(amount) > parse_quantity(limits[name])
    }
    return {"requests": {**requests, **asked.requests}, "limits": {**limits, **lifted}}


def _startup(probe: Manifest, spec: WorldImageSpec) -> Manifest:
    tries = max(1, int(spec.mcp.ready_timeout_seconds))
    return {**probe, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": tries}


def _digest(manifest: Manifest) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:_HASH_CHARS]
