"""What a run is given: nodes, roles, and how they are scheduled."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, ImageReference, Name, NonNegative, Positive
from seatrial_api.quantity import Quantity
from seatrial_api.rules import Rule, RuledModel, at_most_one
from seatrial_api.spec.pod_template import POD_TEMPLATE_RULES, PodTemplate

Amounts = Annotated[dict[str, Quantity], Field(default_factory=dict, max_length=32)]
"""Amounts by resource name: `cpu`, `memory`, `nvidia.com/gpu`."""


class ResourceClaim(ApiModel):
    """A device by dynamic resource allocation."""

    name: Name
    """Name of an entry of `resourceClaims` in the podTemplate."""
    request: Name | None = None
    """One of the claim's requests; all of them if empty."""


class Resources(RuledModel):
    """Kubernetes resource requests and limits."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.requests.all(name, !(name in self.limits) || "
            "quantity(self.requests[name]).compareTo(quantity(self.limits[name])) <= 0)",
            "requests exceed limits of the same resource, with which no pod is made; lower requests, or raise limits",
            ".requests",
        ),
        Rule(
            "self.limits.all(name, !name.endsWith('/gpu') || self.limits[name].matches('^[0-9]{1,4}$'))",
            "limits of GPUs are whole numbers; write them without unit and fraction",
            ".limits",
        ),
        Rule(
            "self.requests.all(name, !name.endsWith('/gpu') || self.requests[name].matches('^[0-9]{1,4}$'))",
            "requests of GPUs are whole numbers; write them without unit and fraction",
            ".requests",
        ),
    )

    requests: Amounts
    """Requests by resource name."""
    limits: Amounts
    """Limits by resource name."""
    claims: list[ResourceClaim] = Field(default_factory=list, max_length=16)
    """Devices that `resourceClaims` of the podTemplate bring; the pod then asks for no GPUs by name."""


class RoleSpec(RuledModel):
    """The pods of one role."""

    rules: ClassVar[tuple[Rule, ...]] = POD_TEMPLATE_RULES

    image: ImageReference | None = None
    """Container image; the chart's default if empty."""
    resources: Resources = Resources()
    """Resources of the Ray container. Empty requests get a small default, and GPUs follow `gpusPerNode`."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """Partial PodTemplateSpec, merged strategically: volumes, affinity, RDMA, /dev/shm, NCCL environment."""


class AgentsSpec(RoleSpec):
    """Pods that run trial processes."""

    replicas: Positive = 1
    """Number of pods."""
    hosts_per_replica: Positive = 1
    """TrialHost actors per pod."""
    trials_per_host: Positive = 64
    """Trial processes that one TrialHost runs at once."""


class Kueue(ApiModel):
    """Queueing by Kueue."""

    queue: Name
    """LocalQueue in the run's namespace."""
    priority_class: Name | None = None
    """WorkloadPriorityClass."""


class Volcano(ApiModel):
    """Gang scheduling by Volcano."""

    queue: Name
    """Volcano queue."""
    priority_class: Name | None = None
    """PriorityClass of the pod group."""


class Scheduling(RuledModel):
    """Who admits the gang; at most one."""

    rules: ClassVar[tuple[Rule, ...]] = (at_most_one("scheduling", "kueue", "volcano"),)

    kueue: Kueue | None = None
    """Kueue."""
    volcano: Volcano | None = None
    """Volcano."""


def inference_share(topology: str) -> str:
    """CEL: the left side of the ratio of the object `topology`."""
    return f"int({topology}.inferenceTrainRatio.split(':')[0])"


def train_share(topology: str) -> str:
    """CEL: the right side of the ratio of the object `topology`."""
    return f"int({topology}.inferenceTrainRatio.split(':')[1])"


def _shares(topology: str) -> str:
    return f"({inference_share(topology)} + {train_share(topology)})"


def inference_nodes(topology: str) -> str:
    """CEL: nodes that run engines; the one node if there is but one."""
    return f"({topology}.nodes == 1 ? 1 : {topology}.nodes * {inference_share(topology)} / {_shares(topology)})"


def train_nodes(topology: str) -> str:
    """CEL: nodes that train; the one node if there is but one."""
    return f"({topology}.nodes == 1 ? 1 : {topology}.nodes * {train_share(topology)} / {_shares(topology)})"


_KINDS = ("requests", "limits")


def _gpus_match(role: str) -> Rule:
    conditions = " && ".join(
        f"self.{role}.resources.{kind}.all(name, !name.endsWith('/gpu') || "
        f"self.{role}.resources.{kind}[name] == string(self.gpusPerNode))"
        for kind in _KINDS
    )
    return Rule(
        conditions,
        f"{role}.resources asks for another number of GPUs than gpusPerNode {{self.gpusPerNode}}; remove it there, or "
        "make both equal",
        f".{role}.resources",
    )


def _needs_no_gpus(role: str) -> Rule:
    return Rule(
        " && ".join(f"self.{role}.resources.{kind}.all(name, !name.endsWith('/gpu'))" for kind in _KINDS),
        f"{role}.resources asks for GPUs, which nothing on these pods would use; remove it",
        f".{role}.resources",
    )


_SETS_SCHEDULER = " || ".join(
    f"(has(self.{role}.podTemplate.spec) && has(self.{role}.podTemplate.spec.schedulerName))"
    for role in ("head", "rollout", "train", "agents")
)


class TopologySpec(RuledModel):
    """Nodes and their split between inference and training."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _gpus_match("rollout"),
        _gpus_match("train"),
        _needs_no_gpus("head"),
        _needs_no_gpus("agents"),
        Rule(
            "self.nodes > 1 || !(has(self.train.image) || has(self.train.podTemplate.spec) || "
            "has(self.train.podTemplate.metadata) || "
            "size(self.train.resources.requests) + size(self.train.resources.limits) + "
            "size(self.train.resources.claims) > 0)",
            "train describes pods that a run on one node has not, because rollout's train as well; move it to rollout",
            ".train",
        ),
        Rule(
            f"!has(self.scheduling.volcano) || !({_SETS_SCHEDULER})",
            "a podTemplate sets schedulerName and scheduling.volcano brings Volcano's; remove one",
            ".scheduling",
        ),
        Rule(
            f"self.nodes == 1 || self.nodes % {_shares('self')} == 0",
            "inferenceTrainRatio {self.inferenceTrainRatio} does not divide {self.nodes} nodes; make nodes a multiple "
            f"of {{{_shares('self')}}}, change the ratio, or take one node, which both share",
            ".inferenceTrainRatio",
        ),
    )

    nodes: Positive = 1
    """GPU nodes of the run."""
    gpus_per_node: NonNegative = 8
    """GPUs on each node; 0 runs on CPUs."""
    inference_train_ratio: str = Field(default="1:1", pattern=r"^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$", max_length=9)
    """Nodes for inference to nodes for training; must divide the nodes. One node is shared by both."""
    hold: Literal["Segment", "Run"] = "Segment"
    """Keep all nodes for the whole run, or only what each segment of stages needs."""
    scheduling: Scheduling = Scheduling()
    """Queueing and gang scheduling."""
    head: RoleSpec = RoleSpec()
    """The Ray head, which runs the driver."""
    rollout: RoleSpec = RoleSpec()
    """Inference pods."""
    train: RoleSpec = RoleSpec()
    """Training pods."""
    agents: AgentsSpec = AgentsSpec()
    """Trial pods."""
