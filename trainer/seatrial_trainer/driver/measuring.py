"""Trials that measure: every task a number of times, stored as groups, resumable."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.stopping import StopRequestedError, unless_stopped
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket

_MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tries at tasks, all run alike."""

    purpose: str
    """Names the measurement in trajectories and group ids."""
    profile: TrialProfile
    tasks: Sequence[TaskRef]
    tries: int = 1
    version: int = 0
    """Weight version that the engines serve."""

    @property
    def num_trials(self) -> int:
        """Trials without retries."""
        return len(self.tasks) * self.tries

    def group_id(self, task: str) -> str:
        """Group of all tries at a task."""
        return f"{self.purpose}-v{self.version}-{task}"


@dataclass
class Counter:
    """Trials done over several measurements of one stage."""

    total: int
    done: int = 0


async def measure(
    context: StageContext, dispatcher: TrialDispatcher, measurement: Measurement, counter: Counter | None = None
) -> list[Trajectory]:
    """Run a measurement; groups that an earlier attempt stored are not run again.

    A group in which infrastructure ended every try is: to repair it and resume has to help. Infrastructure failures
    are retried. What is returned holds every attempt, so that error rates can be told.

    Args:
        context: The stage.
        dispatcher: Runs the trials, beside whatever else it runs.
        measurement: What to run.
        counter: Shows the stage's progress, if the measurement is the stage's work.

    Raises:
        StopRequestedError: if the driver was asked to stop meanwhile.
    """
    (await context.cluster.rollout()).trials.prepare(measurement.purpose, measurement.profile, measurement.tasks)
    measured = _measured(context, measurement)
    missing = [task for task in measurement.tasks if task not in measured]
    done = [trajectory for group in measured.values() for trajectory in group]
    if counter:
        counter.done += len(measured) * measurement.tries
        context.telemetry.units(counter.done, counter.total, "trials")
    return done + await unless_stopped(context.stop, _run(context, dispatcher, measurement, missing, counter))


def _measured(context: StageContext, measurement: Measurement) -> dict[TaskRef, list[Trajectory]]:
    """What an earlier attempt has stored of the tasks that it could grade."""
    storage = context.storage
    group_ids = {task: measurement.group_id(task.name) for task in measurement.tasks}
    stored = {task: storage.read_group(group_id) for task, group_id in group_ids.items() if storage.has_group(group_id)}
    return {task: group for task, group in stored.items() if not all(one.outcome.is_infrastructure for one in group)}


async def _run(
    context: StageContext,
    dispatcher: TrialDispatcher,
    measurement: Measurement,
    tasks: Sequence[TaskRef],
    counter: Counter | None,
) -> list[Trajectory]:
    tickets = [_ticket(measurement, task, slot) for task in tasks for slot in range(measurement.tries)]
    open_slots = {measurement.group_id(task.name): measurement.tries for task in tasks}
    attempts: dict[str, list[Trajectory]] = defaultdict(list)
    async with aclosing(dispatcher.run_all(tickets, max_attempts=_MAX_ATTEMPTS)) as ended:
        async for trajectory in ended:
            if trajectory.outcome is Outcome.CANCELLED:
                raise StopRequestedError
            group_id = trajectory.group_id
            attempts[group_id].append(trajectory)
            if trajectory.outcome.is_infrastructure and not _is_last_attempt(trajectory):
                continue
            open_slots[group_id] -= 1
            if open_slots[group_id] == 0:
                await asyncio.to_thread(context.storage.write_group, group_id, attempts[group_id])
            if counter:
                counter.done += 1
                context.telemetry.units(counter.done, counter.total, "trials")
    return [trajectory for group in attempts.values() for trajectory in group]


def _ticket(measurement: Measurement, task: TaskRef, slot: int) -> TrialTicket:
    return TrialTicket(
        group_id=measurement.group_id(task.name),
        slot=slot,
        task=task.name,
        domain=task.domain,
        purpose=measurement.purpose,
        start_version=measurement.version,
    )


def _is_last_attempt(trajectory: Trajectory) -> bool:
    return trajectory.trial_id.endswith(f"-a{_MAX_ATTEMPTS}")
