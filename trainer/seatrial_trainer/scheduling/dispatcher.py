"""Runs trials under one limit on how many are in flight, whoever asked for them."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Self

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.scheduling.concurrency import LengthEstimate, trajectory_tokens
from seatrial_trainer.scheduling.ticket import TrialRunner, TrialTicket

log = structlog.get_logger(__name__)

type Planned = tuple[str, str]
"""Purpose and task of a trial to come."""
type Settle = Callable[[TrialTicket, Trajectory], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Job:
    """A trial to run, and who gets its trajectory."""

    ticket: TrialTicket
    settle: Settle
    """Awaited exactly once, after the trial's place is free again."""
    delay_seconds: float = 0.0
    """Pause before the trial. Its place stays taken, so that a storm of failures slows itself down."""


@dataclass(slots=True)
class _Running:
    ticket: TrialTicket
    since: float
    task: asyncio.Task[None]
    has_begun: bool = False
    is_cancelled: bool = False


class TrialDispatcher:
    """Admits trials in order of arrival, and asks its feed for more when none waits.

    There is no waiting worker: one task per trial in flight, and the end of a trial starts the next one directly, so
    the cost of a trial does not depend on how many there are. Every job's `settle` is awaited exactly once, with
    `Cancelled` for a trial that the dispatcher stopped. Training and validation share one dispatcher and so one limit;
    jobs that were submitted go before new ones from the feed.

    Leaving the context cancels what is in flight. The first exception of a `settle` or of a spawned loop ends the
    context and is raised from it as it is.
    """

    def __init__(
        self, runner: TrialRunner, *, limit: int, trial_timeout_seconds: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Prepare; nothing runs before the context is entered.

        Args:
            runner: Runs one trial.
            limit: Trials in flight at most.
            trial_timeout_seconds: A runner that gives no answer for so long is given up. More than a trial's own wall
                deadline: it catches a trial host that hangs.
            clock: Time.
        """
        self._runner = runner
        self._limit = limit
        self._trial_timeout_seconds = trial_timeout_seconds
        self._clock = clock
        self._feed: Callable[[], Iterable[Job]] = tuple
        self._foresee: Callable[[], Iterable[Planned]] = tuple
        self._queue: deque[Job] = deque()
        self._running: dict[str, _Running] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._tasks = asyncio.TaskGroup()
        self._num_live = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_stopped = False
        self.lengths = LengthEstimate()
        """Trajectory lengths seen so far."""
        self.outcomes: Counter[Outcome] = Counter()
        """Trials that ended, by outcome."""

    @property
    def limit(self) -> int:
        """Trials in flight at most."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self.fill()

    @property
    def num_in_flight(self) -> int:
        """Trials in flight, those that pause before an attempt included."""
        return len(self._running)

    @property
    def num_queued(self) -> int:
        """Trials that wait for a place."""
        return len(self._queue)

    def in_flight(self) -> list[tuple[TrialTicket, float]]:
        """Trials in flight with the seconds since they were admitted, oldest first."""
        now = self._clock.now()
        return [(running.ticket, now - running.since) for running in self._running.values()]

    def feed_from(self, feed: Callable[[], Iterable[Job]], foresee: Callable[[], Iterable[Planned]] = tuple) -> None:
        """Ask for jobs whenever a place is free and no job waits.

        Args:
            feed: Gives jobs, and none while it has none.
            foresee: Tells which trials it will give soon, one by one.
        """
        self._feed, self._foresee = feed, foresee
        self.fill()

    def upcoming(self) -> Counter[Planned]:
        """Trials that start soon, no more than can be in flight: those that wait, then those that the feed foresees."""
        waiting = ((job.ticket.purpose, job.ticket.task) for job in self._queue)
        return Counter(islice(chain(waiting, self._foresee()), self._limit))

    def spawn(self, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop beside the trials until the context is left."""
        self._loops.append(self._tasks.create_task(loop))

    def submit(self, job: Job, *, first: bool = False) -> None:
        """Queue a trial, before all that wait or behind them."""
        if first:
            self._queue.appendleft(job)
        else:
            self._queue.append(job)

    def fill(self) -> None:
        """Start trials while there is a place; to be called whenever the feed may have become ready."""
        while not self._is_stopped and self.num_in_flight < self._limit:
            if not self._queue:
                self._queue.extend(self._feed())
            if not self._queue:
                return
            self._start(self._queue.popleft())

    async def run_all(self, tickets: Iterable[TrialTicket], *, max_attempts: int = 1) -> AsyncGenerator[Trajectory]:
        """Run trials that are not trained on, beside those that are; yields each attempt as it ends.

        The weight version is whatever the engines serve: the caller holds it still if that matters.

        Args:
            tickets: One per wanted trial.
            max_attempts: Attempts per trial; only infrastructure outcomes are retried.
        """
        ended: asyncio.Queue[tuple[TrialTicket, Trajectory]] = asyncio.Queue()

        async def settle(ticket: TrialTicket, trajectory: Trajectory) -> None:
            await ended.put((ticket, trajectory))

        open_ids: set[str] = set()
        for ticket in tickets:
            open_ids.add(ticket.trial_id)
            self.submit(Job(ticket, settle))
        self.fill()
        try:
            while open_ids:
                ticket, trajectory = await ended.get()
                open_ids.remove(ticket.trial_id)
                if _is_worth_retrying(trajectory) and ticket.attempt < max_attempts:
                    open_ids.add(ticket.retry().trial_id)
                    self.submit(Job(ticket.retry(), settle), first=True)
                    self.fill()
                yield trajectory
        finally:
            await self._withdraw(open_ids)

    async def drain(self, deadline: Deadline) -> None:
        """Admit nothing new from the feed, and wait until every trial has ended and is settled.

        Raises:
            WaitTimeoutError: naming the trials that are left.
        """
        self._feed = self._foresee = tuple
        try:
            async with asyncio.timeout(deadline.remaining):
                await self._is_idle.wait()
        except TimeoutError:
            names = [ticket.trial_id for ticket, _ in self.in_flight()]
            raise WaitTimeoutError(waiting_for=f"{len(names)} trials to end: {', '.join(names[:5])}") from None

    async def stop(self) -> list[TrialTicket]:
        """Cancel every trial and settle it as `Cancelled`; returns those that were in flight."""
        cancelled = [running.ticket for running in self._running.values()]
        await self._cancel_everything()
        await self._is_idle.wait()
        await self._cancel_everything()  # what trials that were being settled have asked for since
        return cancelled

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await self._cancel_everything()
        try:
            # The group is not told of the body's exception, which goes on by itself: it would wrap it.
            await self._tasks.__aexit__(None, None, None)
        except BaseExceptionGroup as failures:
            cause = failures if len(failures.exceptions) > 1 else None
            raise failures.exceptions[0] from cause

    def _start(self, job: Job) -> None:
        self._num_live += 1
        self._is_idle.clear()
        task = self._tasks.create_task(self._run(job), name=job.ticket.trial_id)
        self._running[job.ticket.trial_id] = _Running(job.ticket, self._clock.now(), task)

    async def _run(self, job: Job) -> None:
        try:
            trajectory = await self._attempt_unless_cancelled(job)
            del self._running[job.ticket.trial_id]
            self.outcomes[trajectory.outcome] += 1
            self.fill()
            await job.settle(job.ticket, trajectory)
        finally:
            self._num_live -= 1
            if not self._num_live:
                self._is_idle.set()

    async def _attempt_unless_cancelled(self, job: Job) -> Trajectory:
        running = self._running[job.ticket.trial_id]
        running.has_begun = True
        try:
            if not running.is_cancelled:
                return await self._attempt(job)
        except asyncio.CancelledError:
            if not running.is_cancelled:
                raise
            running.task.uncancel()
        return job.ticket.without_result(Outcome.CANCELLED, "the run stopped")

    async def _attempt(self, job: Job) -> Trajectory:
        if job.delay_seconds:
            await self._clock.sleep(job.delay_seconds)
        start = self._clock.now()
        self.lengths = self.lengths.started(start)
        tokens = None
        backstop = asyncio.timeout(self._trial_timeout_seconds)
        try:
            async with backstop:
                trajectory = await self._runner.run(job.ticket)
            if not trajectory.outcome.is_infrastructure:
                tokens = trajectory_tokens(trajectory)
            return trajectory
        except Exception as error:
            if backstop.expired():
                detail = f"the trial host gave no answer within {self._trial_timeout_seconds:.0f} s"
                return job.ticket.without_result(Outcome.DEADLINE_EXCEEDED, detail)
            log.exception("trial raised", trial=job.ticket.trial_id, task=job.ticket.task)
            return job.ticket.without_result(Outcome.HARNESS_FAILED, f"{type(error).__name__}: {error}")
        finally:
            now = self._clock.now()
            if tokens is None:
                self.lengths = self.lengths.ended(now)
            else:
                self.lengths = self.lengths.completed(now, now - start, tokens)

    async def _cancel_everything(self) -> None:
        self._is_stopped = True
        await self._withdraw(self._running.keys() | {job.ticket.trial_id for job in self._queue})

    async def _withdraw(self, trial_ids: AbstractSet[str]) -> None:
        for trial_id in trial_ids & self._running.keys():
            running = self._running[trial_id]
            running.is_cancelled = True
            if running.has_begun:  # a task cancelled before its first step would never settle its trial
                running.task.cancel()
        withdrawn = [job for job in self._queue if job.ticket.trial_id in trial_ids]
        self._queue = deque(job for job in self._queue if job.ticket.trial_id not in trial_ids)
        for job in withdrawn:
            trajectory = job.ticket.without_result(Outcome.CANCELLED, "the run stopped before its turn")
            await job.settle(job.ticket, trajectory)


def _is_worth_retrying(trajectory: Trajectory) -> bool:
    return trajectory.outcome.is_infrastructure and trajectory.outcome is not Outcome.CANCELLED
