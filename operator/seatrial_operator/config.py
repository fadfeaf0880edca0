"""Settings of the operator: one YAML file, which the chart writes from its value `config`."""

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, ValidationError

from seatrial_api.base import ApiModel, Name, Positive, Seconds
from seatrial_api.errors import InvalidInputError
from seatrial_api.rules import Rule, RuledModel
from seatrial_api.sandbox_token import MAX_LIFETIME_SECONDS
from seatrial_api.sandboxes import BROKER_PORT
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.spec.pod_template import PodTemplate
from seatrial_api.spec.topology import Resources

CONFIG_VARIABLE = "SEATRIAL_OPERATOR_CONFIG"
"""Environment variable with the path of the file."""
DEFAULT_CONFIG_PATH = Path("/etc/seatrial/operator.yaml")

Image = Annotated[str, Field(min_length=1, max_length=512)]
"""A container image with tag or digest."""
Port = Annotated[int, Field(ge=0, le=65_535)]
"""A TCP port; 0 takes any that is free."""


class Images(ApiModel):
    """Images of a run's pods where its spec names none."""

    ray_cpu: Image = "seatrial/ray-cpu:0.1.0"
    """Pods without GPUs: the head, the agents, and all of a run on CPUs."""
    ray_gpu: Image = "seatrial/ray-gpu:0.1.0"
    """Pods with GPUs: engines and training."""


class LeaseConfig(RuledModel):
    """The Lease that lets one operator act at a time."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.retrySeconds < self.renewSeconds && self.renewSeconds < self.durationSeconds",
            "retrySeconds {self.retrySeconds} < renewSeconds {self.renewSeconds} < durationSeconds "
            "{self.durationSeconds} must hold, so that a holder ends before another may begin; change one",
        ),
    )

    name: Name = "seatrial-operator"
    """Name of the Lease."""
    namespace: Name | None = None
    """Namespace of the Lease; the operator's own if empty."""
    duration_seconds: Positive = 15
    """Time after the last renewal at which another operator may take it."""
    renew_seconds: Seconds = 10.0
    """Time without a renewal after which the holder ends itself."""
    retry_seconds: Seconds = 2.0
    """Time between two tries to take or to renew it."""


class RegistriesConfig(ApiModel):
    """Container registries that world images come from."""

    plain_http: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list)
    """Registries without TLS, as `host:port`; those on the operator's own machine need not be named."""
    recheck_seconds: Seconds = 900.0
    """Time after which the registry is asked again what an image's tag stands for."""
    retry_seconds: Seconds = 60.0
    """Time after which a registry that refused, or did not answer, is asked again."""


class SandboxesConfig(ApiModel):
    """The broker, which keeps sandboxes warm and hands them out, and what its sandboxes have in common."""

    image: Image = "seatrial/sandbox-runtime:0.1.0"
    """What is brought into every sandbox: `sandboxd` and our tool servers, with a Python of their own."""
    harnesses_image: Image = "seatrial/harnesses:0.1.0"
    """What is brought into the sandboxes of worlds with `harnesses`: the programs of agents that others wrote."""
    image_volumes: Literal["Auto", "Always", "Never"] = "Auto"
    """Mount these images as volumes, or let init containers copy them; `Auto` mounts them from Kubernetes 1.35 on."""
    runtime_class: Name | None = "gvisor"
    """RuntimeClass of sandboxes whose world names none, where the cluster has it; the cluster's default if empty."""
    resources: Resources = Resources(
        requests={"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
        limits={"cpu": "2", "memory": "2Gi", "ephemeral-storage": "8Gi"},
    )
    """Resources of a world's container, as far as the world does not say."""
    sidecar_resources: Resources = Resources(
        requests={"cpu": "50m", "memory": "128Mi"}, limits={"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    )
    """Resources of a tool server's container, as far as the world does not say."""
    max_processes: Positive = 256
    """Processes and threads of a sandbox."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Nodes for sandboxes."""
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    """Tolerations of sandboxes."""
    clients: dict[str, str] = Field(default_factory=lambda: {"seatrial.dev/role": "agents"})
    """Labels of the pods, in the namespace of a sandbox, that may talk to it."""
    node_lost_seconds: Positive = 30
    """Time without a word of its node after which a sandbox is lost."""
    lease_seconds: Seconds = 120.0
    """Time without a renewal after which a claimed sandbox is deleted."""
    prefetch_seconds: Seconds = 300.0
    """Time for which a word about trials to come stands."""
    surplus_seconds: Seconds = 60.0
    """Time for which unclaimed sandboxes that nobody wants are kept."""
    trouble_seconds: Seconds = 30.0
    """Time for which a failure that needs a person lasts before waiting claims are answered with it."""
    token_seconds: Annotated[float, Field(gt=0, le=MAX_LIFETIME_SECONDS)] = 900.0
    """Time for which a token for `sandboxd` holds."""
    creations: Positive = 16
    """Pods of a world that are made at once; claims go before."""
    status_seconds: Seconds = 5.0
    """Least time between two writes of a RolloutPool's counts."""
    key_secret: Name = "seatrial-broker-key"  # noqa: S105  a name
    """Secret, in the broker's namespace, with the key that signs tokens; made if it is not there."""
    port: Port = BROKER_PORT
    """Port of the gRPC service."""
    address: Annotated[str, Field(pattern=r"^[^\s/]+:[0-9]+$", max_length=300)] | None = None
    """Where the broker answers, as `host:port`, which trials are told; the chart's own Service if empty."""
    lease: LeaseConfig = LeaseConfig(name="seatrial-broker")
    """Leader election of brokers."""


class InspectionsConfig(ApiModel):
    """Jobs that inspect worlds; they run `images.rayCpu`."""

    trials: Positive = 8
    """Trials at once, each in a sandbox of the world."""
    resources: Resources = Resources(requests={"cpu": "500m", "memory": "2Gi"}, limits={"memory": "4Gi"})
    """Resources of the Job's pod."""
    deadline_seconds: Positive = 86_400
    """Time after which an inspection is given up."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """A partial PodTemplateSpec that is merged into the Job's: tolerations, affinity, volumes; its container is
    `inspection`."""


class OperatorConfig(ApiModel):
    """All settings; each has a default that works in a cluster with one storage class."""

    namespaces: list[Name] = Field(default_factory=list)
    """Namespaces to watch; all if empty."""
    images: Images = Images()
    """Default images."""
    ray_version: str = "2.60.0"
    """Version of Ray in the images."""
    image_pull_secrets: list[Name] = Field(default_factory=list)
    """Secrets, in each run's namespace, that its pods pull images with."""
    storage: StorageSpec | None = None
    """Run storage of runs whose spec names none."""
    ray_auth: Literal["disabled", "token"] = "disabled"
    """How Ray's own ports are guarded besides NetworkPolicy; `token` needs KubeRay 1.5.1."""
    progress_url: str = "http://{cluster}-head-svc.{namespace}.svc:8090"
    """Where a driver answers; `{cluster}` is its RayCluster, `{namespace}` its namespace."""
    serving_url: str = "http://{pool}.{namespace}.svc:8000"
    """Where a RolloutPool on its own answers; `{pool}` is its name, `{namespace}` its namespace."""
    resync_seconds: Seconds = 300.0
    """Time after which every object is looked at again, whether an event came or not."""
    status_seconds: Seconds = 60.0
    """Least time between two status writes that tell of progress alone; a change of state is written at once."""
    poll_seconds: Seconds = 5.0
    """Time between two looks at a driver's progress."""
    driver_timeout_seconds: Seconds = 3.0
    """Time in which a driver has to answer a request."""
    silence_seconds: Seconds = 900.0
    """Time without an answer after which a driver is taken for dead and its nodes are released."""
    stop_grace_seconds: Seconds = 600.0
    """Time that a driver has to write a checkpoint when its run is suspended; then its nodes are released anyway."""
    backoff_seconds: Seconds = 10.0
    """Wait before the attempt that follows one that ended early; it doubles with each in a row without progress."""
    max_backoff_seconds: Seconds = 300.0
    """Longest wait before such an attempt."""
    workers: Positive = 32
    """Objects that are reconciled at once."""
    registries: RegistriesConfig = RegistriesConfig()
    """Container registries that world images come from."""
    sandboxes: SandboxesConfig = SandboxesConfig()
    """The broker of sandboxes, a process of its own that reads these settings, too."""
    inspections: InspectionsConfig = InspectionsConfig()
    """Jobs that inspect worlds."""
    lease: LeaseConfig = LeaseConfig()
    """Leader election."""
    health_port: Port = 8081
    """Port of `/healthz` and `/readyz`."""
    metrics_port: Port = 8080
    """Port of `/metrics`."""


def load_config(path: Path | None = None) -> OperatorConfig:
    """Read the settings from `path`, else from the file that the environment names; an empty file is all defaults.

    Raises:
        InvalidInputError: if the file is not there, is no YAML, or holds an unknown or a wrong field.
    """
    path = path or Path(os.environ.get(CONFIG_VARIABLE, DEFAULT_CONFIG_PATH))
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return OperatorConfig.model_validate(content)
    except (OSError, yaml.YAMLError, ValidationError) as exc:
        msg = f"cannot read the operator's settings from {path} (set {CONFIG_VARIABLE} for another file): {exc}"
        raise InvalidInputError(msg) from exc
