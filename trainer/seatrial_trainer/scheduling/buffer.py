"""Groups from their admission to the step that trains them."""

import asyncio
import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import WaitTimeoutError
from seatrial_trainer.scheduling.groups import Batch, FinishedGroup
from seatrial_trainer.scheduling.staleness import Credit, StalenessLedger


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group in flight."""

    group_id: str
    task: str
    credit: Credit
    since: float
    """Point on the clock of its admission."""


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A group in flight that a step has to wait for."""

    group_id: str
    task: str
    start_version: int
    due: int
    seconds: float
    """Time since its admission."""
    num_running: int
    """Trials of the group that have not ended."""


@dataclass(frozen=True, slots=True)
class WaitReport:
    """What the next step waits for."""

    step: int
    num_finished: int
    batch_size: int
    num_in_flight: int
    held_by: tuple[HeldGroup, ...]
    """Groups that are due and still in flight, oldest first."""

    def describe(self) -> str:
        """One sentence for a person."""
        sentence = (
            f"the batch of step {self.step}: {self.num_finished} groups finished of {self.batch_size} wanted, "
            f"{self.num_in_flight} in flight"
        )
        if not self.held_by:
            return sentence
        names = ", ".join(
            f"{group.group_id} (task {group.task}, started at version {group.start_version} "
            f"{group.seconds:.0f} s ago, due at step {group.due}, {group.num_running} trials to go)"
            for group in self.held_by[:3]
        )
        more = f" and {len(self.held_by) - 3} more" if len(self.held_by) > 3 else ""
        return f"{sentence}, oldest: {names}{more}"


class TrajectoryBuffer:
    """Holds every admitted group, says which may be admitted, and forms batches earliest due first.

    One trainer waits in `take_batch`; it is woken once, when its step may start. A group becomes visible with `put`,
    never before, and leaves once: in a batch, or through `lose`.
    """

    def __init__(
        self, ledger: StalenessLedger, num_running: Callable[[str], int], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Start with nothing admitted.

        Args:
            ledger: Where the run stands.
            num_running: Trials of a group that have not ended, for reports.
            clock: Time.
        """
        self._ledger = ledger
        self._num_running = num_running
        self._clock = clock
        self._open: dict[str, OpenGroup] = {}
        self._finished: list[tuple[int, str, FinishedGroup]] = []
        self._is_ready = asyncio.Event()
        self._enough_since: float | None = None
        self.staleness: Counter[int] = Counter()
        """Groups trained, by steps between admission and training."""
        self.wait_seconds = 0.0
        """Time that the trainer waited for batches."""
        self.hold_seconds = 0.0
        """Part of it in which enough groups were finished and the step waited for those that were due."""

    @property
    def ledger(self) -> StalenessLedger:
        """The arithmetic as it stands."""
        return self._ledger

    @property
    def num_finished(self) -> int:
        """Groups that wait to be trained."""
        return len(self._finished)

    @property
    def open_groups(self) -> list[OpenGroup]:
        """Groups in flight, in order of admission."""
        return list(self._open.values())

    def untrained(self) -> list[tuple[str, str]]:
        """Id and task of every group here, in flight or finished, in order of their ids."""
        finished = [(group_id, group.task) for _, group_id, group in self._finished]
        return sorted([*finished, *((group.group_id, group.task) for group in self._open.values())])

    def admit(self, group_id: str, task: str) -> OpenGroup:
        """Admit a group at the current version.

        Raises:
            ValueError: if there is no credit.
        """
        ledger, credit = self._ledger.admit()
        group = self._open[group_id] = OpenGroup(group_id, task, credit, self._clock.now())
        self._update(ledger)
        return group

    def put(self, group: FinishedGroup) -> None:
        """A group in flight is finished, and durable."""
        del self._open[group.group_id]
        self._push(group)
        self._update(self._ledger.finish(group.credit))

    def lose(self, group_id: str) -> None:
        """A group in flight will never be finished; its credit is free."""
        self._update(self._ledger.lose(self._open.pop(group_id).credit))

    def restore(self, groups: Iterable[FinishedGroup]) -> list[FinishedGroup]:
        """Take back groups that were finished before a resumption; returns those that cannot be trained in time.

        There are such groups only if the run resumes under a tighter bound than it was started with.
        """
        kept: list[Credit] = []
        refused = []
        for group in sorted(groups, key=lambda group: (group.credit.due, group.group_id)):
            try:
                self._ledger.restore_finished([*kept, group.credit])
            except ValueError:
                refused.append(group)
                continue
            kept.append(group.credit)
            self._push(group)
        self._update(self._ledger.restore_finished(kept))
        return refused

    async def take_batch(self, deadline: Deadline) -> Batch:
        """Wait until the next step may start, and take its groups.

        Raises:
            WaitTimeoutError: naming the groups that the step waits for.
        """
        start = self._clock.now()
        try:
            async with asyncio.timeout(deadline.remaining):
                await self._is_ready.wait()
        except TimeoutError:
            waited = self._clock.now() - start
            raise WaitTimeoutError(waiting_for=self.waiting_for().describe(), seconds=waited) from None
        return self._take(start)

    def advance(self, version: int) -> None:
        """The engines serve the weights that the last step made.

        Raises:
            ValueError: if `version` does not follow the last one.
        """
        self._update(self._ledger.advance(version))

    def waiting_for(self) -> WaitReport:
        """What the next step waits for."""
        now = self._clock.now()
        latest = self._ledger.held_by
        held = sorted(
            (group for group in self._open.values() if latest is None or group.credit.due <= latest),
            key=lambda group: group.since,
        )
        return WaitReport(
            step=self._ledger.step,
            num_finished=self._ledger.num_finished,
            batch_size=self._ledger.batch_size,
            num_in_flight=self._ledger.num_in_flight,
            held_by=tuple(
                HeldGroup(
                    group_id=group.group_id,
                    task=group.task,
                    start_version=group.credit.start_version,
                    due=group.credit.due,
                    seconds=now - group.since,
                    num_running=self._num_running(group.group_id),
                )
                for group in held
            ),
        )

    def _take(self, start: float) -> Batch:
        now = self._clock.now()
        enough_since = now if self._enough_since is None else max(start, self._enough_since)
        step = self._ledger.step
        taken = [heapq.heappop(self._finished)[-1] for _ in range(self._ledger.batch_size)]
        groups = tuple(sorted(taken, key=lambda group: (group.credit.due, _turn(step, group.task), group.group_id)))
        batch = Batch(step, groups, wait_seconds=now - start, hold_seconds=now - enough_since)
        self.staleness.update(batch.staleness)
        self.wait_seconds += batch.wait_seconds
        self.hold_seconds += batch.hold_seconds
        self._enough_since = None
        self._update(self._ledger.take())
        return batch

    def _push(self, group: FinishedGroup) -> None:
        heapq.heappush(self._finished, (group.credit.due, group.group_id, group))

    def _update(self, ledger: StalenessLedger) -> None:
        self._ledger = ledger
        if ledger.num_finished >= ledger.batch_size and self._enough_since is None:
            self._enough_since = self._clock.now()
        if ledger.is_ready:
            self._is_ready.set()
        else:
            self._is_ready.clear()


def _turn(step: int, task: str) -> bytes:
    """Place of a task among those of a batch.

    Ids tell how often a run was resumed; by them a resumed run would cut other mini-batches from the same groups.
    """
    return hashlib.blake2b(f"{step}/{task}".encode(), digest_size=8).digest()
