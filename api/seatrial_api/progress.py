"""What the driver serves at `/v1/progress`: the one source of the live view and of `RLRun.status`."""

from pydantic import Field

from seatrial_api.base import ApiModel
from seatrial_api.playbook import ExitCode
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.stage_report import GateResult, StageResult
from seatrial_api.status import CheckpointStatus


class StageProgress(ApiModel):
    """One stage of the run, done, running or to come."""

    name: str
    """Name of the stage."""
    kind: str
    """Kind of the stage."""
    result: StageResult | None = None
    """How it ended; none while it has not."""
    gates: list[GateResult] = Field(default_factory=list)
    """Gates measured so far."""
    seconds: float | None = None
    """Wall time so far; none before it starts."""
    message: str = ""
    """How it ended, in one sentence; empty while it has not."""
    checkpoint: str | None = None
    """Checkpoint that the next stage or a resumption starts from, as the stage's report names it."""
    needs_change: bool = False
    """Whether trying again is in vain until a person changes the manifest, a task or what is stored."""


class Progress(ApiModel):
    """A snapshot of the run."""

    run: str
    """Name of the run."""
    stage: str = ""
    """Stage that runs now; empty between stages."""
    activity: str = ""
    """What the driver does or waits for, in a few words."""
    step: int = 0
    """Units done in this stage: trials, or training batches."""
    of: int = 0
    """Units in this stage; 0 when unknown."""
    unit: str = ""
    """What is counted: `trials`, `steps`."""
    percent: float = 0.0
    """Share of the stage done, in percent."""
    estimated_remaining_seconds: float | None = None
    """Time left in this stage; none when unknown."""
    weight_version: int = 0
    """Version of the weights that the engines serve."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Headline metrics by name: `reward`, `validation_pass_at_1`, `staleness_mean`, `error_rate`, `cost_dollars`, …"""
    ceilings: dict[str, float] = Field(default_factory=dict)
    """Concurrency ceilings by kind, in trials: `systems`, `algorithmic`, `live`."""
    in_flight: int = 0
    """Trials in flight."""
    outcomes: dict[str, int] = Field(default_factory=dict)
    """Trials of this stage by outcome."""
    stages: list[StageProgress] = Field(default_factory=list)
    """Every stage of the run, in order."""
    checkpoints: CheckpointStatus | None = None
    """What the newest Train stage of this segment keeps so far; none before its first checkpoint."""
    elapsed_seconds: float = 0.0
    """Wall time since the driver started."""
    engines: list[EngineStatus] = Field(default_factory=list)
    """Every engine, by name, as of the last look at them; empty before trials run."""
    sandbox: str = ""
    """Where trials run, and what keeps them apart: `local, isolated`; empty before trial hosts are up."""
    ended: ExitCode | None = None
    """How the driver ended; none while it works. Nothing but this page runs any more once it is set."""
    message: str = ""
    """Why the driver ended as it did, in one sentence; empty while it works."""
