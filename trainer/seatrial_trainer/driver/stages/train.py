"""Train: asynchronous training from the model, with validation, checkpoints and guards."""

import asyncio

from seatrial_api.spec.stages import TrainStage
from seatrial_api.stage_report import StageReport
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.training import TrainingLoop, TrainingPlan


async def train(context: StageContext, stage: TrainStage) -> StageReport:
    """Train to the last step.

    Raises:
        StopRequestedError: if the driver was asked to stop.
        GuardedError: if a guard fired.
    """
    plan = TrainingPlan(
        tasks=context.inputs.train,
        domains=context.spec.data.domains,
        algorithm=context.spec.algorithm,
        num_steps=stage.steps,
        max_staleness=context.spec.async_.max_staleness_steps,
        validate_every=stage.validate_every_steps if context.inputs.validation else 0,
        validation_tries=stage.validation_passes,
    )
    history = await TrainingLoop(context, plan).run()
    checkpoints = context.storage.checkpoints
    best = await asyncio.to_thread(lambda: checkpoints.best() or checkpoints.latest())
    message = f"{stage.steps} steps"
    if history:  # a step that was killed before it was measured has no record
        message += f", reward {history[0].reward_mean:.3f} to {history[-1].reward_mean:.3f}"
    metrics = history[-1].scalars() if history else {}
    return context.report(message=message).model_copy(
        update={"metrics": metrics, "checkpoint": checkpoints.address(best) if best else None}
    )
