"""`RolloutPool`: where rollouts happen, engines and sandboxes, owned by a run or standing alone."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Name, NonNegative
from seatrial_api.conditions import Condition
from seatrial_api.kubernetes_object import SERVICE_NAME_RULES, ApiVersion, ObjectMeta
from seatrial_api.rules import Rule, RuledModel, exactly_one, immutable, unique
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.rollout import EngineSpec, SandboxPoolSpec
from seatrial_api.spec.topology import RoleSpec


class RolloutPoolSpec(RuledModel):
    """What the user, or the owning run, wants."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("a pool", "run", "model"),
        Rule(
            "!has(self.run) || self.engines.replicas == oldSelf.engines.replicas",
            "engines.replicas cannot change in the pool of run {self.run}, which is one gang; change the run's own "
            "spec, or make a pool that stands alone",
            ".engines",
        ),
        unique("sandboxes", "world"),
        *immutable("run", "model"),
    )

    run: Name | None = None
    """RLRun that owns the pool and syncs its weights; the operator sets it."""
    model: ModelSpec | None = None
    """Model that a pool on its own serves, token-exact and OpenAI-compatible."""
    engines: EngineSpec = EngineSpec()
    """Inference engines."""
    role: RoleSpec = RoleSpec()
    """Pods of a pool on its own; a run's pool uses `topology.rollout`."""
    sandboxes: list[SandboxPoolSpec] = Field(default_factory=list, max_length=128)
    """Warm sandboxes by world."""


class EngineStatus(ApiModel):
    """One engine."""

    name: Annotated[str, Field(max_length=128)]
    """Name of the engine."""
    state: Literal["Starting", "Ready", "Paused", "Failed"]
    """What it does."""
    weight_version: NonNegative
    """Version of the weights that it serves."""
    kv_tokens: NonNegative = 0
    """Tokens that its KV cache holds at most."""


class CeilingsStatus(ApiModel):
    """Trials in flight: what bounds them, and what holds now."""

    systems: NonNegative | None = None
    """KV tokens of all engines over mean trajectory tokens; empty until trajectories were seen."""
    algorithmic: NonNegative | None = None
    """(S + 1) x batch x group; empty without a run."""
    live: NonNegative = 0
    """What admission allows now."""


class SandboxCounts(ApiModel):
    """Sandboxes of one world."""

    world: Name
    """WorldImage."""
    warm: NonNegative = 0
    """Ready and unclaimed; all pools of the namespace that name the world share them."""
    claimed: NonNegative = 0
    """In use by a trial of this pool."""
    failed: NonNegative = 0
    """Failed since the pool was made."""
    starting: NonNegative = 0
    """Made, and not ready yet."""
    waiting: NonNegative = 0
    """Claims that wait for one."""
    problem: Annotated[str, Field(max_length=1024)] | None = None
    """What keeps sandboxes from being made; empty if nothing does."""


class RolloutPoolStatus(ApiModel):
    """What is observed of a pool."""

    observed_generation: NonNegative = 0
    """`metadata.generation` that this status is about."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """Statements about the pool, at most one of a type."""
    replicas: NonNegative = 0
    """Engines that exist."""
    ready_replicas: NonNegative = 0
    """Engines that serve the expected weight version."""
    selector: Annotated[str, Field(max_length=1024)] | None = None
    """Label selector of the engines' pods, for `kubectl scale` and autoscalers."""
    engines: list[EngineStatus] = Field(default_factory=list, max_length=512)
    """Every engine."""
    ceilings: CeilingsStatus | None = None
    """What bounds the trials in flight."""
    sandboxes: list[SandboxCounts] = Field(default_factory=list, max_length=128)
    """Sandboxes by world."""
    endpoint: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI-compatible base URL of a pool on its own."""


class RolloutPool(RuledModel):
    """Engines and warm sandboxes."""

    rules: ClassVar[tuple[Rule, ...]] = SERVICE_NAME_RULES

    api_version: ApiVersion
    """API group and version."""
    kind: Literal["RolloutPool"]
    """Kind of the object."""
    metadata: ObjectMeta
    """Name, namespace, labels, annotations."""
    spec: RolloutPoolSpec
    """What the user, or the owning run, wants."""
    status: RolloutPoolStatus | None = None
    """What was observed; written by the operator, and `sandboxes` by the broker."""
