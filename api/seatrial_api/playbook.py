"""The playbook as a state machine: which stage runs next, on which nodes, and how a run ends.

A stage that does not pass ends the run: nothing after it spends a GPU. Everything here is pure; launchers (the local
one and the operator) ask `next_step` after each stage and do what it says.

    next_step ──▶ RunStage ──▶ (a launcher runs it, the driver reports) ──▶ next_step ──▶ … ──▶ Finished | Stopped
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import groupby
from typing import Literal, assert_never

from seatrial_api.spec.stages import (
    AblateStage,
    EvaluateStage,
    OverfitStage,
    PreflightStage,
    StageSpec,
    TrainStage,
)
from seatrial_api.stage_report import StageReport, StageResult

type StageBody = PreflightStage | EvaluateStage | OverfitStage | AblateStage | TrainStage
type StopReason = Literal["GateFailed", "Guarded", "Failed", "Interrupted"]


class Nodes(StrEnum):
    """Which nodes a stage needs."""

    ROLLOUT = "Rollout"
    """Engines alone: nothing is trained."""
    ALL = "All"
    """Engines and trainer."""


class ExitCode(IntEnum):
    """How `seatrial run` ends, for scripts."""

    PASSED = 0
    """Every gate holds."""
    FAILED = 1
    """A stage could not run to its end."""
    INVALID = 2
    """The manifest, or what it refers to, has to be changed."""
    STOPPED = 3
    """A gate failed or a guard fired."""
    INTERRUPTED = 130
    """A person stopped the run; it can be resumed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive stages on the same nodes: one cluster, from start to end."""

    index: int
    """Position in the run, from 0."""
    nodes: Nodes
    """Nodes that it holds."""
    stages: tuple[str, ...]
    """Names of its stages, in order."""


@dataclass(frozen=True, slots=True)
class RunStage:
    """Run this stage."""

    stage: StageSpec
    segment: Segment
    """Where it runs; the launcher starts the segment's cluster unless it is there already."""
    from_checkpoint: str | None
    """Checkpoint to go on from, when the stage was stopped before; none to begin anew."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Every stage passed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stage did not pass, so the run goes no further; nodes are released."""

    stage: str
    reason: StopReason
    message: str
    """One sentence for a person."""
    is_resumable: bool
    """Whether the stage can go on from a checkpoint."""


type Step = RunStage | Finished | Stopped


def body_of(stage: StageSpec) -> StageBody:
    """The one kind that is set in `stage`."""
    body = stage.preflight or stage.evaluate or stage.overfit or stage.ablate or stage.train
    if body is None:
        msg = f"stage {stage.name} has no kind"
        raise ValueError(msg)
    return body


def nodes_of(stage: StageSpec) -> Nodes:
    """Nodes that `stage` needs."""
    match body_of(stage):
        case PreflightStage() | EvaluateStage():
            return Nodes.ROLLOUT
        case OverfitStage() | AblateStage() | TrainStage():
            return Nodes.ALL
        case body:
            assert_never(body)


def segments_of(stages: Sequence[StageSpec], hold: Literal["Segment", "Run"] = "Segment") -> list[Segment]:
    """Cut a run into segments: maximal runs of consecutive stages with equal nodes.

    Args:
        stages: The run's stages, in order.
        hold: `Run` keeps the most that any stage needs throughout: one segment.
    """
    if hold == "Run":
        most = Nodes.ALL if any(nodes_of(stage) is Nodes.ALL for stage in stages) else Nodes.ROLLOUT
        return [Segment(0, most, tuple(stage.name for stage in stages))]
    runs = groupby(stages, key=nodes_of)
    return [Segment(index, nodes, tuple(stage.name for stage in run)) for index, (nodes, run) in enumerate(runs)]


def next_step(
    stages: Sequence[StageSpec],
    reports: Mapping[str, StageReport],
    *,
    hold: Literal["Segment", "Run"] = "Segment",
    resume: bool = False,
) -> Step:
    """What a launcher does next.

    Args:
        stages: The run's stages, in order.
        reports: Reports of stages that ended, by stage; the caller leaves out reports with a stale fingerprint.
        hold: Whether nodes are kept for the whole run.
        resume: Run the stage that stopped the run again instead of stopping: from its checkpoint if it was guarded,
            interrupted or failed, anew if its gate failed.
    """
    segments = segments_of(stages, hold)
    for stage in stages:
        report = reports.get(stage.name)
        if report is not None and report.result is StageResult.PASSED:
            continue
        segment = next(segment for segment in segments if stage.name in segment.stages)
        if report is None:
            return RunStage(stage, segment, from_checkpoint=None)
        stopped = _stopped(report)
        if resume:
            return RunStage(stage, segment, report.checkpoint if stopped.is_resumable else None)
        return stopped
    return Finished()


def _stopped(report: StageReport) -> Stopped:
    has_checkpoint = report.checkpoint is not None
    match report.result:
        case StageResult.GATE_FAILED:
            failed = ", ".join(gate.name for gate in report.gates if not gate.passed)
            return Stopped(report.stage, "GateFailed", report.message or f"gate failed: {failed}", is_resumable=False)
        case StageResult.GUARDED:
            return Stopped(report.stage, "Guarded", report.message or "a guard fired", has_checkpoint)
        case StageResult.FAILED:
            return Stopped(report.stage, "Failed", report.message or "the stage failed", has_checkpoint)
        case StageResult.INTERRUPTED:
            return Stopped(report.stage, "Interrupted", report.message or "the stage was interrupted", has_checkpoint)
        case StageResult.PASSED:
            msg = f"stage {report.stage} passed and does not stop a run"
            raise ValueError(msg)
        case result:
            assert_never(result)


def exit_code(end: Finished | Stopped) -> ExitCode:
    """Exit code of a run that ended so."""
    if isinstance(end, Finished):
        return ExitCode.PASSED
    match end.reason:
        case "GateFailed" | "Guarded":
            return ExitCode.STOPPED
        case "Interrupted":
            return ExitCode.INTERRUPTED
        case "Failed":
            return ExitCode.FAILED
        case reason:
            assert_never(reason)
