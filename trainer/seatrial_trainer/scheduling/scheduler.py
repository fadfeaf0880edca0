"""Admits groups, follows their trials, and hands out batches."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import assert_never

import structlog
from pydantic import Field

from seatrial_api.base import ApiModel
from seatrial_api.ceilings import algorithmic_ceiling
from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import TransientError
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.assembly import AssemblyRules, Finish, GroupAssembly, Lose, Refill, Retry, Wait
from seatrial_trainer.scheduling.buffer import OpenGroup, TrajectoryBuffer
from seatrial_trainer.scheduling.concurrency import Ceilings
from seatrial_trainer.scheduling.dispatcher import Job, Planned, TrialDispatcher
from seatrial_trainer.scheduling.groups import Batch, FinishedGroup, GroupResult
from seatrial_trainer.scheduling.sampler import Sampler, SamplerState
from seatrial_trainer.scheduling.snapshot import SchedulerSnapshot
from seatrial_trainer.scheduling.staleness import StalenessLedger
from seatrial_trainer.scheduling.ticket import TrialTicket

log = structlog.get_logger(__name__)

type OnGroupFinished = Callable[[FinishedGroup], Awaitable[None]]


class RolloutsFailingError(TransientError):
    """Infrastructure loses one group after the other: waiting longer won't make a batch."""

    def __init__(self, *, num_lost: int, outcome: str, detail: str) -> None:
        super().__init__(
            f"the last {num_lost} groups were all lost to infrastructure, most recently by {outcome}: "
            f"{detail or 'no detail'}; repair it and resume the run"
        )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What one training stage asks of the scheduler."""

    purpose: str
    """Name of the stage."""
    rules: AssemblyRules
    """Size and assembly of a group."""
    batch_size: int
    """Groups per step."""
    max_staleness: int
    """Steps between a group's admission and its training; 0 is synchronous."""
    num_steps: int
    """Steps of the stage."""
    incarnation: int = 0
    """How often the stage was resumed: ids of an earlier attempt are never used again."""
    max_consecutive_losses: int = 16
    """Groups lost one after the other, none finished between them, after which the stage gives up."""


class UntrainedGroup(ApiModel):
    """A group that was admitted and not trained, as a resumed run knows it."""

    group_id: str
    """Id of the group."""
    task: str
    """Task to try again if the group was not stored before the run stopped."""


class SchedulerState(ApiModel):
    """What has to be stored with every batch manifest for `Scheduler.restore`."""

    num_admitted: int = 0
    """Groups admitted over all attempts."""
    sampler: SamplerState = SamplerState()
    """Where sampling stands."""
    untrained: list[UntrainedGroup] = Field(default_factory=list)
    """Groups in flight or finished, in order of admission."""
    not_restored: list[str] = Field(default_factory=list)
    """Ids of stored groups that a resumption refused: they stay in storage, and are never trained."""
    groups: dict[GroupResult, int] = Field(default_factory=dict)
    """Groups that have left, by result."""
    staleness: dict[int, int] = Field(default_factory=dict)
    """Trained groups by staleness."""


@dataclass(slots=True)
class _Group:
    admitted: OpenGroup
    domain: str
    assembly: GroupAssembly


class Scheduler:
    """Keeps as many trials running as staleness credit and concurrency allow.

    It has no task of its own. The dispatcher asks it for trials when a place is free (`_admit`), and tells it when
    one ended (`_settle`); the trainer takes a batch, steps, syncs the weights and calls `advance`. Who waits for
    whom: the trainer for the buffer; a finished group for `on_group_finished`, then it becomes visible; trials for
    nothing but a place.

    To shut down, leave the dispatcher's context or call its `stop`: groups in flight stay in `state()`, so that a
    resumed run tries their tasks again and long tasks are not lost more often than short ones.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        sampler: Sampler,
        dispatcher: TrialDispatcher,
        *,
        on_group_finished: OnGroupFinished,
        on_trial: Callable[[Trajectory], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare; nothing is admitted before `start`.

        Args:
            settings: What the stage asks for.
            sampler: Tasks.
            dispatcher: Runs trials; shared with validation.
            on_group_finished: Awaited with each finished group before the group becomes visible: stores it.
            on_trial: Called with every attempt of a training trial that ended, failed ones included.
            clock: Time.
        """
        self._settings = settings
        self._sampler = sampler
        self._dispatcher = dispatcher
        self._on_group_finished = on_group_finished
        self._on_trial = on_trial
        self._clock = clock
        self._groups: dict[str, _Group] = {}
        self._results: Counter[GroupResult] = Counter()
        self._not_restored: list[str] = []
        self._num_admitted = 0
        self._num_consecutive_losses = 0
        self._buffer = self._new_buffer(version=0)

    @property
    def version(self) -> int:
        """Weight version that the engines serve."""
        return self._buffer.ledger.version

    @property
    def algorithmic_ceiling(self) -> int:
        """Trials that can be in flight within the staleness bound."""
        settings = self._settings
        return algorithmic_ceiling(settings.max_staleness, settings.batch_size, settings.rules.group_size)

    def start(self) -> None:
        """Admit groups from now on."""
        self._dispatcher.feed_from(self._admit, self._foresee)

    async def take_batch(self, deadline: Deadline) -> Batch:
        """Wait until the next step may start, and take its groups.

        Raises:
            WaitTimeoutError: naming what the step waits for.
        """
        batch = await self._buffer.take_batch(deadline)
        self._results[GroupResult.TRAINED] += len(batch.groups)
        for group in batch.groups:
            self._sampler.observe(group.task, group.pass_rate)
        return batch

    def advance(self, version: int) -> None:
        """The engines serve the weights that the last step made: admit what that allows.

        Raises:
            ValueError: if `version` does not follow the last one.
        """
        self._buffer.advance(version)
        self._dispatcher.fill()

    def waiting_for(self) -> str:
        """What the next step waits for, in one sentence."""
        return self._buffer.waiting_for().describe()

    def snapshot(self, ceilings: Ceilings) -> SchedulerSnapshot:
        """The scheduler in numbers."""
        return SchedulerSnapshot(
            version=self.version,
            trials_in_flight=self._dispatcher.num_in_flight,
            trials_queued=self._dispatcher.num_queued,
            concurrency=self._dispatcher.limit,
            ceilings=ceilings,
            groups_in_flight=len(self._groups),
            groups_finished=self._buffer.num_finished,
            staleness=dict(self._buffer.staleness),
            staleness_hold_seconds=self._buffer.hold_seconds,
            buffer_wait_seconds=self._buffer.wait_seconds,
            groups=dict(self._results),
            outcomes=dict(self._dispatcher.outcomes),
        )

    def state(self) -> SchedulerState:
        """What a resumed run needs; taken right after `take_batch` it belongs into that batch's manifest."""
        return SchedulerState(
            num_admitted=self._num_admitted,
            sampler=self._sampler.state(),
            untrained=[UntrainedGroup(group_id=group_id, task=task) for group_id, task in self._buffer.untrained()],
            not_restored=self._not_restored.copy(),
            groups=dict(self._results),
            staleness=dict(self._buffer.staleness),
        )

    def restore(self, state: SchedulerState, *, version: int, spooled: Sequence[FinishedGroup]) -> list[FinishedGroup]:
        """Go on from the last batch manifest; before `start`.

        Stored groups that no manifest names are finished and wait for their step. Every other group that was admitted
        starts again, at `version` and under a new id: the sampler repeats the draws that were made after the manifest,
        so the tasks of groups that were stored since are told from those that were in flight.

        Args:
            state: From the manifest, or of a fresh scheduler if there is none.
            version: Steps that are trained, the manifest's own included.
            spooled: Stored groups that no manifest names.

        Returns:
            Groups that the bounds of this run no longer allow to train; their tasks are tried again.
        """
        self._sampler.restore(state.sampler)
        self._num_admitted = state.num_admitted
        self._results = Counter(state.groups)
        self._buffer = self._new_buffer(version)
        self._buffer.staleness.update(state.staleness)
        spooled = [group for group in spooled if group.group_id not in state.not_restored]
        refused = self._buffer.restore(spooled)
        self._not_restored = [*state.not_restored, *(group.group_id for group in refused)]
        self._results[GroupResult.NOT_RESTORED] += len(refused)
        for task in [*self._interrupted(state, spooled), *(group.task for group in refused)]:
            self._sampler.put_back(task)
        return refused

    def _new_buffer(self, version: int) -> TrajectoryBuffer:
        settings = self._settings
        ledger = StalenessLedger(
            settings.batch_size, settings.max_staleness, settings.num_steps, version=version, step=version
        )
        return TrajectoryBuffer(ledger, lambda group_id: self._groups[group_id].assembly.num_running, clock=self._clock)

    def _interrupted(self, state: SchedulerState, spooled: Sequence[FinishedGroup]) -> list[str]:
        """Tasks that were admitted, are not trained and have no stored group, in order of admission.

        Told by task, not by group: an attempt that ended before its first manifest has started groups of its own for
        tasks that the state names under the ids of the attempt before it.
        """
        stored = Counter(group.task for group in spooled)
        admitted = (group.task for group in state.untrained)
        drawn = (
            self._sampler.draw().name for _ in range(self._settings.batch_size * (self._settings.max_staleness + 1))
        )
        interrupted = [task for task in admitted if not _take(stored, task)]
        while stored.total() and (task := next(drawn, None)) is not None:
            if not _take(stored, task):
                interrupted.append(task)
        return interrupted

    def _admit(self) -> Iterable[Job]:
        if self._buffer.ledger.num_credits <= 0:
            return ()
        task = self._sampler.draw()
        group_id = f"{self._settings.purpose}-r{self._settings.incarnation}-g{self._num_admitted:06d}"
        self._num_admitted += 1
        admitted = self._buffer.admit(group_id, task.name)
        group = _Group(admitted, task.domain, GroupAssembly.start(self._settings.rules))
        self._groups[group_id] = group
        return [self._job(group, slot) for slot in range(self._settings.rules.group_size)]

    def _foresee(self) -> Iterator[Planned]:
        """Trials that the next step's weights allow to start."""
        for task in self._sampler.peek(self._buffer.ledger.num_credits_soon):
            yield from repeat((self._settings.purpose, task.name), self._settings.rules.group_size)

    def _job(self, group: _Group, slot: int, delay_seconds: float = 0.0) -> Job:
        ticket = TrialTicket(
            group_id=group.admitted.group_id,
            slot=slot,
            task=group.admitted.task,
            domain=group.domain,
            purpose=self._settings.purpose,
            start_version=group.admitted.credit.start_version,
        )
        return Job(ticket, self._settle, delay_seconds)

    async def _settle(self, ticket: TrialTicket, trajectory: Trajectory) -> None:
        group = self._groups[ticket.group_id]
        self._on_trial(trajectory)
        group.assembly, action = group.assembly.settle(ticket.slot, ticket.attempt, trajectory)
        match action:
            case Wait():
                return
            case Retry(delay_seconds):
                self._dispatcher.submit(Job(ticket.retry(), self._settle, delay_seconds), first=True)
            case Refill(first_slot, num_trials, delay_seconds):
                for slot in range(first_slot, first_slot + num_trials):
                    self._dispatcher.submit(self._job(group, slot, delay_seconds), first=True)
            case Finish(trajectories):
                await self._finish(group, trajectories)
            case Lose(result):
                self._lose(group, result, trajectory)
            case _:
                assert_never(action)
        self._dispatcher.fill()

    async def _finish(self, group: _Group, trajectories: tuple[Trajectory, ...]) -> None:
        admitted = group.admitted
        finished = FinishedGroup(admitted.group_id, admitted.task, group.domain, admitted.credit, trajectories)
        await self._on_group_finished(finished)
        del self._groups[admitted.group_id]
        self._buffer.put(finished)
        self._num_consecutive_losses = 0

    def _lose(self, group: _Group, result: GroupResult, last: Trajectory) -> None:
        admitted = group.admitted
        log.warning(
            "group lost",
            group=admitted.group_id,
            task=admitted.task,
            result=result,
            outcome=last.outcome,
            detail=last.detail,
        )
        del self._groups[admitted.group_id]
        self._buffer.lose(admitted.group_id)
        self._results[result] += 1
        if result is GroupResult.TASK_BROKEN:
            self._sampler.retire(admitted.task)
        else:
            self._sampler.put_back(admitted.task)
        self._num_consecutive_losses += 1
        if self._num_consecutive_losses >= self._settings.max_consecutive_losses:
            raise RolloutsFailingError(num_lost=self._num_consecutive_losses, outcome=last.outcome, detail=last.detail)


def _take(tasks: Counter[str], task: str) -> bool:
    """Take one of the task out, if there is one."""
    if not tasks[task]:
        return False
    tasks[task] -= 1
    return True
