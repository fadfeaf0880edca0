"""Evaluate: a checkpoint on the held-out and regression sets, held against the Initial evaluation."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.harness import Sampling
from seatrial_api.spec.stages import EvaluateStage, StageSpec
from seatrial_api.stage_report import Estimate, EvaluationResult, GateResult, StageReport, TokenUse
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.inputs import HELD_OUT
from seatrial_trainer.driver.measuring import Counter, Measurement, measure
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.evaluation.statistics import estimate_gain
from seatrial_trainer.evaluation.summary import results_by_task, summarize
from seatrial_trainer.observability.token_use import tokens_of
from seatrial_trainer.storage.checkpoints import Checkpoint
from seatrial_trainer.storage.run_storage import RunStorage


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the results: a task set under one sampling and one harness."""

    task_set: str
    sampling: Sampling
    harness: str

    @property
    def label(self) -> str:
        """For a person."""
        sampling = "greedy" if self.sampling.temperature == 0 else f"T={self.sampling.temperature:g}"
        return f"{self.task_set} {sampling}"

    def full_label(self, usual_harness: str) -> str:
        """The label, with the harness if that is not the run's own."""
        return self.label if self.harness == usual_harness else f"{self.label} {self.harness}"

    @property
    def key(self) -> str:
        """Part of the purpose; the same in every Evaluate stage of the run."""
        return f"{self.task_set}-{self.harness}-t{self.sampling.temperature:g}-p{self.sampling.top_p:g}"


async def evaluate(context: StageContext, stage: EvaluateStage) -> StageReport:
    """Measure every setting and hold the gates.

    Raises:
        InvalidInputError: if there is nothing to measure, or no checkpoint.
        StopRequestedError: if the driver was asked to stop.
    """
    settings = list(_settings(context, stage))
    if not settings:
        raise InvalidInputError(f"stage {context.stage.name}: spec.data has neither heldOut nor regression tasks")
    version = await _serve(context, stage)
    measurements = {setting: _measurement(context, stage, setting, version) for setting in settings}
    counter = Counter(total=sum(measurement.num_trials for measurement in measurements.values()))
    results = {}
    async with context.dispatching() as dispatcher:
        for setting, measurement in measurements.items():
            context.telemetry.activity(f"evaluating {setting.label}")
            results[setting] = await measure(context, dispatcher, measurement, counter)
    gains = await asyncio.to_thread(_gains, context, stage, results)
    gates = [context.telemetry.gate(gate) for gate in _gates(context, stage, gains)]
    evaluations = [_result(context, setting, tries, gains.get(setting)) for setting, tries in results.items()]
    for setting, evaluation in zip(results, evaluations, strict=True):
        name = f"{context.stage.name}/pass_at_1/{setting.full_label(context.spec.harness.name)}"
        context.telemetry.track(version, {name: evaluation.pass_at_1.mean})
    first = evaluations[0]
    message = f"pass@1 {first.pass_at_1.mean:.1%} on {first.name}"
    return context.report(*gates, message=message).model_copy(update={"evaluations": evaluations})


def choose_checkpoint(context: StageContext, which: str) -> Checkpoint:
    """The checkpoint of the newest Train stage before this one.

    Raises:
        InvalidInputError: if no Train stage left one.
    """
    for train in reversed(context.earlier_stages("Train")):
        if checkpoint := context.run_storage.stage(train.name).checkpoints.choose(which):
            return checkpoint
    raise InvalidInputError(f"stage {context.stage.name}: no earlier Train stage left a checkpoint to evaluate")


async def _serve(context: StageContext, stage: EvaluateStage) -> int:
    context.telemetry.activity("loading weights into the engines")
    if stage.checkpoint == "Initial":
        await context.cluster.serve(context.inputs.model_path, version=0)
        return 0
    checkpoint = await asyncio.to_thread(choose_checkpoint, context, stage.checkpoint)
    await context.cluster.serve(checkpoint.model, version=checkpoint.manifest.version)
    return checkpoint.manifest.version


def _settings(context: StageContext, stage: EvaluateStage) -> Iterator[Setting]:
    for task_set in context.inputs.evaluation_sets:
        for harness in _harnesses(context, stage):
            for sampling in stage.sampling:
                yield Setting(task_set, sampling, harness)


def _measurement(context: StageContext, stage: EvaluateStage, setting: Setting, version: int) -> Measurement:
    return Measurement(
        purpose=_purpose(context.stage, setting),
        profile=TrialProfile.evaluation(context.spec, setting.sampling, setting.harness),
        tasks=context.inputs.evaluation_sets[setting.task_set],
        tries=stage.passes,
        version=version,
    )


def _result(
    context: StageContext, setting: Setting, tries: Sequence[Trajectory], gain: Estimate | None
) -> EvaluationResult:
    asked = {
        "task_set": setting.task_set,
        "sampling": setting.sampling,
        "purpose": _purpose(context.stage, setting),
        "gain": gain,
        "tokens": sum((tokens_of(one) for one in tries if one.turns), TokenUse(harness=setting.harness)),
    }
    return summarize(setting.label, setting.harness, tries).model_copy(update=asked)


def _gates(
    context: StageContext, stage: EvaluateStage, gains: Mapping[Setting, Estimate | None]
) -> Iterator[GateResult]:
    """Of the first sampling and harness alone."""
    first = stage.sampling[0], _harnesses(context, stage)[0]
    for setting, gain in gains.items():
        if (setting.sampling, setting.harness) != first:
            continue
        detail = "no Initial evaluation measured a task of it in the same way"
        if gain is not None:
            detail = f"95 % interval {gain.low:+.3f} to {gain.high:+.3f} over {gain.count} tasks"
        if setting.task_set != HELD_OUT:
            name = f"loss in pass@1, {setting.label}, lower end"
            value = None if gain is None else max(0.0, -gain.high)
            yield GateResult(name=name, value=value, bound=stage.max_regression, direction="AtMost", detail=detail)
        elif stage.min_gain is not None:
            name = f"gain in pass@1, {setting.label}"
            value = None if gain is None else gain.mean
            yield GateResult(name=name, value=value, bound=stage.min_gain, direction="AtLeast", detail=detail)


def _gains(
    context: StageContext, stage: EvaluateStage, results: Mapping[Setting, Sequence[Trajectory]]
) -> dict[Setting, Estimate | None]:
    """Of every setting since the Initial evaluation; None where that measured no task in the same way."""
    before = [
        one for one in context.earlier_stages("Evaluate") if one.evaluate and one.evaluate.checkpoint == "Initial"
    ]
    if stage.checkpoint == "Initial" or not before:
        return {}
    stored = _stored(context.run_storage, before)
    return {setting: _gain(stored.get(setting.key, {}), results_by_task(tries)) for setting, tries in results.items()}


def _gain(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> Estimate | None:
    return estimate_gain(before, after) if before.keys() & after.keys() else None


def _stored(storage: RunStorage, stages: Sequence[StageSpec]) -> dict[str, dict[str, list[float]]]:
    """Results by task of each setting's key, of the first stage that measured it."""
    found: dict[str, dict[str, list[float]]] = {}
    for stage in stages:
        tries: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in storage.trajectories(stage.name):
            tries[trajectory.purpose].append(trajectory.model_copy(update={"sequences": []}))
        for purpose, measured in tries.items():
            found.setdefault(purpose.removeprefix(f"{stage.name}-"), results_by_task(measured))
    return found


def _purpose(stage: StageSpec, setting: Setting) -> str:
    return f"{stage.name}-{setting.key}"


def _harnesses(context: StageContext, stage: EvaluateStage) -> list[str]:
    return stage.harnesses or [context.spec.harness.name]
