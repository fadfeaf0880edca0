"""Preflight: is everything but the model in order, and is there something to learn?"""

from collections.abc import Sequence
from random import Random

from seatrial_api.spec.stages import PreflightStage
from seatrial_api.stage_report import GateResult, StageReport
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.request import TrialMode
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.measuring import Counter, Measurement, measure
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.evaluation.summary import passed
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher

_VARIANCE = "preflight-variance"


async def preflight(context: StageContext, stage: PreflightStage) -> StageReport:
    """Try training tasks at the concurrency of training with the untrained model.

    Raises:
        StopRequestedError: if the driver was asked to stop.
    """
    tasks = context.inputs.train[: stage.tasks]
    solvable = [task for task in tasks if task.has_solution] if stage.check_solutions else []
    await context.cluster.serve(context.inputs.model_path, version=0)
    gates = []
    async with context.dispatching() as dispatcher:
        counter = Counter(total=len(tasks) + 2 * len(solvable))
        for mode, wanted in ((TrialMode.ORACLE, 1.0), (TrialMode.NO_OP, 0.0)):
            gates += await _check_solutions(context, dispatcher, solvable, mode, wanted, counter)
        context.telemetry.activity("every task once, with the untrained model")
        profile = TrialProfile.training(context.spec)
        tries = await measure(context, dispatcher, Measurement("preflight", profile, tasks), counter)
        gates.append(_error_gate(tries, stage))
        varied = await _find_variance(context, dispatcher, stage, tasks)
    gates = [context.telemetry.gate(gate) for gate in gates]
    report = context.report(*gates, message=f"{len(varied)} tasks show reward variance")
    return report.model_copy(update={"metrics": {"tasks_with_variance": float(len(varied))}})


def tasks_with_variance(trajectories: Sequence[Trajectory]) -> list[str]:
    """Tasks whose graded tries did not all earn the same reward, in order of their names."""
    rewards: dict[str, set[float]] = {}
    for trajectory in trajectories:
        if trajectory.purpose == _VARIANCE and trajectory.reward is not None:
            rewards.setdefault(trajectory.task, set()).add(trajectory.reward)
    return sorted(task for task, seen in rewards.items() if len(seen) > 1)


def _error_gate(tries: Sequence[Trajectory], stage: PreflightStage) -> GateResult:
    failed = [trajectory for trajectory in tries if trajectory.outcome.is_infrastructure]
    examples = "; ".join(f"{one.outcome}: {one.detail[:80]}" for one in failed[:2])
    return GateResult(
        name="non-model error rate",
        value=len(failed) / len(tries) if tries else None,
        bound=stage.max_error_rate,
        direction="AtMost",
        detail=f"{len(failed)} of {len(tries)} trials {examples}".strip(),
    )


async def _check_solutions(
    context: StageContext,
    dispatcher: TrialDispatcher,
    tasks: Sequence[TaskRef],
    mode: TrialMode,
    wanted: float,
    counter: Counter,
) -> list[GateResult]:
    if not tasks:
        return []
    context.telemetry.activity(f"every task once, {mode.value} in the model's place")
    profile = TrialProfile.solution(context.spec, mode)
    tries = await measure(context, dispatcher, Measurement(f"preflight-{mode.value.lower()}", profile, tasks), counter)
    solved = {trajectory.task for trajectory in tries if passed(trajectory)}
    graded = {trajectory.task for trajectory in tries if not trajectory.outcome.is_infrastructure}
    right = graded & solved if wanted == 1.0 else {one.task for one in tries if one.reward == 0.0}
    wrong = sorted({task.name for task in tasks} - right)
    name = "oracle scores 1" if mode is TrialMode.ORACLE else "doing nothing scores 0"
    return [
        GateResult(
            name=f"share of tasks whose {name}",
            value=len(right) / len(tasks),
            bound=1.0,
            direction="AtLeast",
            detail=f"not so: {', '.join(wrong[:5])}" if wrong else f"{len(tasks)} tasks",
        )
    ]


async def _find_variance(
    context: StageContext, dispatcher: TrialDispatcher, stage: PreflightStage, tasks: Sequence[TaskRef]
) -> list[str]:
    """Whole groups on random tasks, a few at a time, until enough of them show variance."""
    candidates = list(tasks)
    Random(context.spec.algorithm.seed).shuffle(candidates)  # noqa: S311  no secret
    candidates = candidates[: stage.max_variance_tries]
    profile = TrialProfile.training(context.spec)
    group_size = context.spec.algorithm.group_size
    counter = Counter(total=min(len(candidates), stage.variance_tasks) * group_size)
    found: list[str] = []
    seen: list[Trajectory] = []
    while candidates and len(found) < stage.variance_tasks:
        context.telemetry.activity(f"looking for reward variance: {len(found)} of {stage.variance_tasks} tasks")
        missing = stage.variance_tasks - len(found)
        now, candidates = candidates[:missing], candidates[missing:]
        counter.total = max(counter.total, counter.done + len(now) * group_size)
        seen += await measure(context, dispatcher, Measurement(_VARIANCE, profile, now, tries=group_size), counter)
        found = tasks_with_variance(seen)
    return found
