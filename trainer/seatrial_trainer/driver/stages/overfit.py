"""Overfit: synchronous training on few tasks proves that the loop learns; the weights are thrown away."""

from statistics import fmean

from seatrial_api.spec.stages import OverfitStage
from seatrial_api.stage_report import GateResult, StageReport
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.stages.preflight import tasks_with_variance
from seatrial_trainer.driver.sync_probe import SyncProbe
from seatrial_trainer.driver.training import TrainingLoop, TrainingPlan
from seatrial_trainer.observability.step_record import StepRecord

_LOGPROB_STEPS = 3


async def overfit(context: StageContext, stage: OverfitStage) -> StageReport:
    """Train on the tasks that Preflight found and hold the gates.

    Raises:
        StopRequestedError: if the driver was asked to stop.
    """
    tasks = _tasks(context, stage)
    algorithm = context.spec.algorithm.model_copy(
        update={
            "group_size": stage.group_size,
            "batch_size": len(tasks),
            "minibatch_size": None,
            "min_valid_trials": None,
        }
    )
    plan = TrainingPlan(
        tasks,
        domains=[],  # a batch is all of the tasks once, whatever their domains
        algorithm=algorithm,
        num_steps=stage.steps,
        max_staleness=0,
        keeps_checkpoints=False,
    )
    probe = SyncProbe(context, tasks, num_syncs=_LOGPROB_STEPS)
    history = await TrainingLoop(context, plan, probe=probe).run()
    measured = (_logprob_gate(history, stage), _in_flight_gate(history, stage), _reward_gate(history, stage))
    gates = [context.telemetry.gate(gate) for gate in measured]
    return context.report(*gates, message=f"{len(tasks)} tasks, {len(history)} steps")


def _tasks(context: StageContext, stage: OverfitStage) -> list[TaskRef]:
    by_name = {task.name: task for task in context.inputs.train}
    for preflight in context.earlier_stages("Preflight"):
        varied = tasks_with_variance(list(context.run_storage.trajectories(preflight.name)))
        if varied:
            return [by_name[name] for name in varied[: stage.tasks] if name in by_name]
    return context.inputs.train[: stage.tasks]


def _logprob_gate(history: list[StepRecord], stage: OverfitStage) -> GateResult:
    steps = history[:_LOGPROB_STEPS]
    fresh = [step.fresh_logprob_abs_diff_mean for step in steps if step.fresh_logprob_abs_diff_mean is not None]
    return GateResult(
        name="mean absolute logprob difference, steps 1 to 3",
        value=fmean(fresh) if fresh else None,
        bound=stage.max_logprob_diff,
        direction="AtMost",
        detail="tokens of the weights that were trained next",
    )


def _in_flight_gate(history: list[StepRecord], stage: OverfitStage) -> GateResult:
    """On its own: among the many tokens of whole groups those of a damaged sync would not be noticed."""
    tokens = [step.in_flight_tokens for step in history[:_LOGPROB_STEPS]]
    means = [step.in_flight_logprob_abs_diff_mean or 0.0 for step in history[:_LOGPROB_STEPS]]
    return GateResult(
        name="mean absolute logprob difference after a sync in flight",
        value=fmean(means, weights=tokens) if sum(tokens) else None,
        bound=stage.max_logprob_diff,
        direction="AtMost",
        detail=f"{sum(tokens)} tokens of trials that were sampling when weights came, steps 1 to 3",
    )


def _reward_gate(history: list[StepRecord], stage: OverfitStage) -> GateResult:
    first, last = history[0].reward_mean, max(step.reward_mean for step in history[1:] or history)
    return GateResult(
        name=f"gain in mean reward within {stage.steps} steps",
        value=last - first,
        bound=stage.min_reward_gain,
        direction="AtLeast",
        detail=f"{first:.3f} to {last:.3f}",
    )
