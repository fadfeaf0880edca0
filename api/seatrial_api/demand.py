"""How many trials each stage of a run starts, and what that takes: the arithmetic behind `seatrial plan`."""

from dataclasses import dataclass
from typing import assert_never

from seatrial_api.ceilings import Usage, algorithmic_ceiling, split_nodes
from seatrial_api.playbook import Nodes, Segment, body_of
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.stages import (
    AblateStage,
    EvaluateStage,
    OverfitStage,
    PreflightStage,
    StageSpec,
    TrainStage,
)


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks by set; none where the number is not known before the set is read."""

    train: int | None
    validation: int | None
    held_out: int | None
    regression: int | None
    """Over all regression sets."""

    @property
    def evaluated(self) -> int | None:
        """Tasks of an Evaluate stage."""
        return None if self.held_out is None or self.regression is None else self.held_out + self.regression


@dataclass(frozen=True, slots=True)
class TrialShape:
    """What a trial is taken to be before any was seen."""

    seconds: float
    """Wall time of a trial."""
    tokens: float
    """Length of a trajectory."""
    sampled_fraction: float = 0.3
    """Share of its tokens that the policy samples."""
    turns: float = 20.0
    """Engine calls; each finds all that came before in the prefix cache."""

    @property
    def usage(self) -> Usage:
        """Tokens of one trial."""
        return Usage(
            cached_prompt_tokens=self.tokens * (self.turns - 1) / 2,
            prompt_tokens=self.tokens * (1 - self.sampled_fraction),
            completion_tokens=self.tokens * self.sampled_fraction,
        )


AGENT_TIME_SHARE = 0.05
"""A trial's share of `agentTimeoutSeconds`: the published recipe finishes 3 trials a second with 550 in flight, so a
trial takes 183 s of 3,600 s."""

CONTEXT_SHARE = 0.25
"""A trajectory's share of the context length."""


def assumed_shape(spec: RLRunSpec) -> TrialShape:
    """A guess at a run's trials, to be replaced by what is known of the tasks."""
    return TrialShape(
        seconds=spec.harness.limits.agent_timeout_seconds * AGENT_TIME_SHARE,
        tokens=spec.model.context_length.train * CONTEXT_SHARE,
    )


def trials_of(stage: StageSpec, spec: RLRunSpec, tasks: TaskCounts) -> int | None:
    """Trials that a stage starts at most, retries aside; none if it depends on a set whose size is not known."""
    batch = spec.algorithm.batch_size * spec.algorithm.group_size
    fixed, times = 0, 1
    counted: int | None = 0
    match body_of(stage):
        case PreflightStage() as preflight:
            fixed, counted = preflight.max_variance_tries * spec.algorithm.group_size, preflight.tasks or tasks.train
        case EvaluateStage() as evaluate:
            counted = tasks.evaluated
            times = evaluate.passes * len(evaluate.sampling) * max(1, len(evaluate.harnesses))
        case OverfitStage() as overfit:
            fixed = overfit.steps * overfit.tasks * overfit.group_size
        case AblateStage() as ablate:
            fixed, counted = len(ablate.arms) * ablate.steps * batch, tasks.evaluated
            times = len(ablate.arms) * ablate.passes
        case TrainStage() as train:
            validations = train.steps // train.validate_every_steps if train.validate_every_steps else 0
            fixed, counted = train.steps * batch, tasks.validation if validations else 0
            times = validations * train.validation_passes
        case body:
            assert_never(body)
    return None if counted is None else fixed + times * counted


def concurrency_of(stage: StageSpec, spec: RLRunSpec, systems: int | None) -> int:
    """Trials in flight during a stage: what was set, or the least of the ceilings that bound it.

    Args:
        stage: The stage; staleness bounds training alone.
        spec: The run.
        systems: Trials whose keys and values fit the engines, if known.
    """
    if isinstance(spec.async_.concurrency, int):
        return spec.async_.concurrency
    engines = spec.rollout.engines.replicas * spec.rollout.engines.max_num_seqs
    bounds = [engines] if systems is None else [engines, systems]
    if stage.train is not None or stage.ablate is not None:
        algorithm = spec.algorithm
        bounds.append(algorithmic_ceiling(spec.async_.max_staleness_steps, algorithm.batch_size, algorithm.group_size))
    return min(bounds)


def nodes_held(segment: Segment, spec: RLRunSpec) -> int:
    """GPU nodes of a segment."""
    split = split_nodes(spec.topology)
    return split.total if segment.nodes is Nodes.ALL else split.inference
