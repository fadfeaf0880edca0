"""What is observed of an `RLRun`; written by the operator alone."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from seatrial_api.base import ApiModel, Name, NonNegative
from seatrial_api.conditions import Condition, RunPhase
from seatrial_api.stage_report import GateResult, StageResult

Text = Annotated[str, Field(max_length=1024)]
"""A short text."""


class Progress(ApiModel):
    """How far the current stage has come."""

    step: NonNegative
    """Steps, trials or passes done, as the stage counts."""
    of: NonNegative
    """What `step` will be at the end."""
    percent: Annotated[int, Field(ge=0, le=100)]
    """Share done, rounded down."""
    estimated_remaining_seconds: NonNegative | None = None
    """Time left at the current pace; empty until a pace is known."""


class HeadlineMetrics(ApiModel):
    """The figures that one looks at first; empty while unknown."""

    reward: float | None = None
    """Mean reward of the newest training batch."""
    validation_pass_rate: float | None = None
    """pass@1 of the newest validation."""
    staleness_steps: float | None = None
    """Mean staleness of the newest training batch."""
    logprob_diff: float | None = None
    """Mean absolute logprob difference between engine and trainer on the newest batch."""
    error_rate: float | None = None
    """Share of trials with an infrastructure outcome among the stage's newest: as many as `guards.windowSteps` batches
    hold, validation's included, those of trials that a stop cancelled not."""
    trials_in_flight: NonNegative | None = None
    """Trials that run now."""
    prefix_cache_hit_rate: float | None = None
    """Share of the prompt tokens of the stage's trials that engines found in their prefix caches."""
    cost_dollars: float | None = None
    """Spent so far at the prices of `spec.cost`, earlier attempts included: tokens, and node hours from a driver's
    start to its end; and what the judge has spent at its own. Empty where nothing has a price."""


class StageStatus(ApiModel):
    """A stage that has begun."""

    name: Name
    """Name of the stage."""
    result: StageResult | None = None
    """How it ended; empty while it runs."""
    message: Text = ""
    """One sentence for a person."""
    attempt: NonNegative = 0
    """How often its segment was started again."""
    started_at: datetime | None = None
    """When it began."""
    finished_at: datetime | None = None
    """When it ended."""
    checkpoint: Text | None = None
    """What a resumption goes on from; empty while there is none, or the stage runs."""
    gates: list[GateResult] = Field(default_factory=list, max_length=32)
    """Every gate: measured value against bound."""


class Checkpoint(ApiModel):
    """Weights that were kept."""

    step: NonNegative
    """Training batches behind them."""
    uri: Text
    """Where they are."""
    validation_pass_rate: float | None = None
    """pass@1 on the validation set, if measured at this step."""


class CheckpointStatus(ApiModel):
    """Checkpoints of the Train stage, told as soon as they are there."""

    last: Checkpoint | None = None
    """The newest, from which the run resumes."""
    best: Checkpoint | None = None
    """The best by validation."""


class Endpoints(ApiModel):
    """Addresses inside the cluster."""

    dashboard: Text | None = None
    """Ray's dashboard."""
    progress: Text | None = None
    """The driver's progress."""
    metrics: Text | None = None
    """The driver's Prometheus metrics."""
    report: Text | None = None
    """Where `report.html` lies in run storage."""


class AttemptStatus(ApiModel):
    """The attempt that holds nodes: what the operator has to remember of it."""

    started_at: datetime
    """When its RayJob was made."""
    cluster: Text | None = None
    """RayCluster that its driver runs in; empty before it runs."""
    head: Text | None = None
    """Uid of the pod that its driver runs in: another pod in its place has no driver."""
    settings: Text | None = None
    """Digest of the live settings, concurrency and guards, that the driver took over last."""
    first_step: NonNegative | None = None
    """Training batches that were done when its Train stage went on."""
    stopping_since: datetime | None = None
    """When the driver was asked to write a checkpoint and end; empty while it is to go on."""


class RLRunStatus(ApiModel):
    """What is observed of a run; conditions hold the truth, all else is detail."""

    observed_generation: NonNegative = 0
    """`metadata.generation` that this status is about."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """Statements about the run, at most one of a type."""
    phase: RunPhase | None = None
    """Where the run stands, for a printed column."""
    stage: Name | None = None
    """The stage that runs, or ran last."""
    segment: NonNegative = 0
    """Index of the current segment of stages."""
    attempt: NonNegative = 0
    """How often the current segment was started again; while none runs, the number of the next attempt."""
    stages: list[StageStatus] = Field(default_factory=list, max_length=32)
    """Stages that have begun, in order."""
    progress: Progress | None = None
    """How far the current stage has come."""
    metrics: HeadlineMetrics | None = None
    """The figures that one looks at first."""
    checkpoints: CheckpointStatus | None = None
    """Checkpoints of the Train stage."""
    sandbox: Text | None = None
    """Where trials run their tools, and what keeps them apart: `local, not isolated`."""
    endpoints: Endpoints | None = None
    """Addresses inside the cluster."""
    current: AttemptStatus | None = None
    """The attempt that holds nodes; empty between attempts."""
    failures: NonNegative = 0
    """Attempts in a row that ended early without progress."""
    retry_at: datetime | None = None
    """When the next attempt starts after one that ended early."""
    guards: Text | None = None
    """Digest of the guards that the newest attempt ran with; a guarded run goes on when they change."""
    resumes: bool = False
    """Whether a stage whose gate failed is run anew, as a person asked."""
    resumed_for: Text | None = None
    """Value of the annotation `seatrial.dev/resume` that was acted on last; another value asks again."""
