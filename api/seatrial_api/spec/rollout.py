"""Engines and sandboxes: where rollouts happen."""

from typing import Annotated, ClassVar

from pydantic import Field

from seatrial_api.base import ApiModel, Name, NonNegative, Positive, Seconds
from seatrial_api.rules import Rule, RuledModel, immutable, unique

_OWNED_ARGS = "host|port|model|tensor-parallel-size|dtype|max-model-len|gpu-memory-utilization|max-num-seqs|api-key"


class EngineSpec(RuledModel):
    """vLLM servers."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.args.all(arg, !arg.matches('^--({_OWNED_ARGS})(=.*)?$'))",
            "args sets what the run sets by itself (host, port, model, dtype, context length, parallelism, memory, "
            "requests at once); remove it and use the field of that meaning",
            ".args",
        ),
    )

    replicas: Positive = 1
    """Number of engines."""
    tensor_parallel: Positive = 1
    """GPUs per engine."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of GPU memory that vLLM may take."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the KV cache on CPU, in GiB."""
    max_num_seqs: Positive = 256
    """Requests that an engine runs at once."""
    start_timeout_seconds: Seconds = 900.0
    """Time to a server that answers."""
    args: list[Annotated[str, Field(max_length=1024)]] = Field(default_factory=list, max_length=64)
    """More arguments for vLLM."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the vLLM process."""


class SandboxPoolSpec(RuledModel):
    """Warm sandboxes of one world."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.warmMin <= self.warmMax",
            "warmMin {self.warmMin} exceeds warmMax {self.warmMax}; lower it or raise warmMax",
            ".warmMin",
        ),
        Rule(
            "self.warmMax <= self.ceiling",
            "warmMax {self.warmMax} exceeds ceiling {self.ceiling}; lower it or raise ceiling",
            ".warmMax",
        ),
        Rule(
            "!self.recycle",
            "recycle would hand a trial what the one before it left in shared memory and volumes; remove it: a sandbox "
            "is deleted after its trial, and warmMin keeps the next one ready",
            ".recycle",
        ),
    )

    world: Name
    """WorldImage."""
    warm_min: NonNegative = 0
    """Sandboxes kept warm when nothing asks for them."""
    warm_max: Positive = 64
    """Most sandboxes kept warm."""
    ceiling: Positive = 1024
    """Most sandboxes at once, warm and claimed."""
    lifetime_seconds: Seconds = 7200.0
    """Time for which a trial may hold a sandbox, counted from its claim, and age at which a warm one is replaced, a few
    at a time."""
    recycle: bool = False
    """Refused: restarting a sandbox's containers leaves its trial's shared memory and volumes to the next one."""


class RolloutPoolTemplate(RuledModel):
    """What a run embeds of a RolloutPool."""

    rules: ClassVar[tuple[Rule, ...]] = (unique("sandboxes", "world"), *immutable("engines"))

    engines: EngineSpec = EngineSpec()
    """Inference engines."""
    sandboxes: list[SandboxPoolSpec] = Field(default_factory=list, max_length=128)
    """Warm sandboxes by world."""


class ReplaySpec(ApiModel):
    """What becomes of a trial whose sandbox dies: another one takes its place, and the trial goes on."""

    max_restores: NonNegative = 3
    """Sandboxes that may take a dead one's place in one trial; with 0 the first death ends it."""
    snapshot_every_calls: NonNegative = 5
    """Tool calls between two snapshots of the agent's files; the calls since the last one are made again. 0 takes none,
    so that every call is made again: for worlds whose tool servers keep in memory what their files do not tell."""


class SandboxSpec(RuledModel):
    """Where trials run their tools."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "size(self.config) == 0 || self.provider != 'kubernetes'",
            "config is for a Harbor environment, which the provider kubernetes is not; remove it, or choose local or "
            "harbor:<environment>",
            ".config",
        ),
        Rule(
            "!has(self.world) || self.provider == 'kubernetes'",
            "world {self.world} is what pods are made from, which {self.provider} has not; remove it or choose the "
            "provider kubernetes",
            ".world",
        ),
    )

    provider: str = Field(default="kubernetes", pattern=r"^(kubernetes|local|harbor:[A-Za-z0-9_.:-]+)$", max_length=256)
    """`kubernetes`, `local`, or `harbor:<environment>` for any environment that Harbor has."""
    world: Name | None = None
    """WorldImage in whose pods the tasks are tried; a task's own `metadata.world` wins. Needed by `kubernetes`."""
    config: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Passed to a Harbor environment as it is."""
    replay: ReplaySpec = ReplaySpec()
    """How a trial survives the death of its sandbox."""
