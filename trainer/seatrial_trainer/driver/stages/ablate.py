"""Ablate: variants of the run from the same start, each trained a little and measured; their weights are thrown away.

An arm keeps what it leaves as a stage of its own would, named after stage and arm. One that was stopped half-way
begins anew; one that is done is answered from its report.
"""

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace

from seatrial_api.ablation import patched_spec
from seatrial_api.spec.stages import AblateArm, AblateStage
from seatrial_api.stage_report import StageReport
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.measuring import Measurement, measure
from seatrial_trainer.driver.training import TrainingLoop, TrainingPlan
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.evaluation.comparison import arm_stage_name, compare_arms, conclusion
from seatrial_trainer.evaluation.summary import summarize


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant, ready to run."""

    name: str
    context: StageContext
    """Of a stage of its own, with the arm's spec."""
    plan: TrainingPlan

    @property
    def question(self) -> str:
        """Digest of all that decides its result."""
        stage = self.context.stage.model_dump(mode="json", exclude={"name": True, "ablate": {"arms": True}})
        parts = [self.context.spec.model_dump(mode="json", exclude={"stages"}), stage]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


async def ablate(context: StageContext, stage: AblateStage) -> StageReport:
    """Train and measure every arm, and compare them with the first.

    Raises:
        InvalidInputError: if an arm cannot run.
        StopRequestedError: if the driver was asked to stop; arms that are done are not run again.
        NothingGradedError: if infrastructure ended every trial of a measurement.
    """
    arms = [_arm(context, stage, arm) for arm in stage.arms]
    reports, tries = [], {}
    for number, arm in enumerate(arms, start=1):
        context.telemetry.activity(f"arm {arm.name}, {number} of {len(arms)}")
        reports.append(await _answered(arm) or await _run(arm, stage))
        tries[arm.name] = await asyncio.to_thread(_tries, arm)
    await context.cluster.adopt(context.spec)
    results = compare_arms(tries)
    return context.report(message=conclusion(results)).model_copy(
        update={
            "arms": results,
            "metrics": {f"pass_at_1/{one.name}": one.pass_at_1.mean for one in results},
        }
    )


def _arm(context: StageContext, stage: AblateStage, arm: AblateArm) -> Arm:
    spec = patched_spec(context.spec, arm)
    named = context.stage.model_copy(update={"name": arm_stage_name(context.stage.name, arm.name)})
    plan = TrainingPlan(
        tasks=context.inputs.train,
        domains=context.spec.data.domains,
        algorithm=spec.algorithm,
        num_steps=stage.steps,
        max_staleness=spec.async_.max_staleness_steps,
        keeps_checkpoints=False,
    )
    return Arm(arm.name, replace(context, stage=named, spec=spec), plan)


async def _answered(arm: Arm) -> StageReport | None:
    return await asyncio.to_thread(arm.context.storage.read_report, arm.question)


async def _run(arm: Arm, stage: AblateStage) -> StageReport:
    context = arm.context
    await context.cluster.adopt(context.spec)
    history = await TrainingLoop(context, arm.plan).run()
    results = {name: await _measure(arm, stage, name) for name in context.inputs.evaluation_sets}
    evaluations = [summarize(name, context.spec.harness.name, tries) for name, tries in results.items()]
    first = evaluations[0]
    report = context.report(message=f"{stage.steps} steps, pass@1 {first.pass_at_1.mean:.1%} on {first.name}")
    report = report.model_copy(
        update={"fingerprint": arm.question, "evaluations": evaluations, "metrics": history[-1].scalars()}
    )
    await asyncio.to_thread(context.storage.write_report, report)
    return report


def _tries(arm: Arm) -> list[Trajectory]:
    """At the first set: the held-out one where there is one."""
    context = arm.context
    purpose = _purpose(arm, next(iter(context.inputs.evaluation_sets)))
    return [one for one in context.run_storage.trajectories(context.stage.name) if one.purpose == purpose]


def _purpose(arm: Arm, task_set: str) -> str:
    return f"{arm.context.stage.name}-{task_set}"


async def _measure(arm: Arm, stage: AblateStage, task_set: str) -> list[Trajectory]:
    context = arm.context
    context.telemetry.activity(f"arm {arm.name}: measuring on {task_set}")
    measurement = Measurement(
        purpose=_purpose(arm, task_set),
        profile=TrialProfile.evaluation(context.spec, context.spec.harness.sampling),
        tasks=context.inputs.evaluation_sets[task_set],
        tries=stage.passes,
        version=arm.plan.num_steps,
    )
    async with context.dispatching() as dispatcher:
        return await measure(context, dispatcher, measurement)
