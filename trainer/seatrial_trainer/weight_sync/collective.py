"""Weight synchronisation by broadcast, with a membership that may change at any time."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, override

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_rollout.engine.control import EngineControl, EngineStatus, UpdateReport
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.pool import Pool
from seatrial_trainer.weight_sync.protocol import SyncReport, WeightSync, WeightSyncError
from seatrial_trainer.weight_sync.remote_sender import Sender, SendError
from seatrial_trainer.weight_sync.update import Updates, compare_weights

_MAX_ATTEMPTS = 3
_LEAVE_SECONDS = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Member:
    """One engine's server of the moment."""

    engine: EngineControl
    status: EngineStatus

    @property
    def key(self) -> tuple[str, str]:
        """Another one when the engine gets another server."""
        return self.engine.engine_id, self.status.server_id


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group meet; the fields are those of the workers' init info."""

    master_address: str
    master_port: int
    world_size: int


@dataclass(frozen=True, slots=True)
class UpdateOrder:
    """What engines are told to do."""

    version: int
    clear_kv_cache: bool
    timeout_seconds: float

    def load(self, engine: EngineControl, update_info: Mapping[str, Any]) -> Awaitable[UpdateReport]:
        """Tell one engine."""
        return engine.load_staged(
            update_info, self.version, clear_kv_cache=self.clear_kv_cache, timeout_seconds=self.timeout_seconds
        )


class CollectiveSync(WeightSync, ABC):
    """Broadcasts from the policy's rank 0 to the engines' workers.

        members:  the engines that have a server
        epoch:    listen ─▶ all join, and connect           kept while the members stay the same
        transfer: send, and each engine: pause, load, resume

    On any join, loss or timeout the epoch is aborted and destroyed, and made anew with the servers that there are by
    then: one that does not even leave is given up. Whoever has the version is left alone. No step takes longer than a
    third of the deadline. An engine that could not be reached admits nothing until it is, by the next `publish` or by
    `repair`.
    """

    def __init__(
        self,
        pool: Pool,
        sender: Sender,
        *,
        clear_kv_cache: bool = False,
        timeout_seconds: float = 300.0,
        verify_checksums: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a synchronisation without an epoch.

        Args:
            pool: The engines.
            sender: The policy's end.
            clear_kv_cache: Recompute the keys and values of running requests.
            timeout_seconds: Deadline of one `publish`.
            verify_checksums: Debug mode: what arrived is compared with what was sent where we receive it, which is with
                gloo, and what one engine holds with what the others hold; by SHA-256.
            clock: The time.
        """
        self._pool = pool
        self._sender = sender
        self._clear_kv_cache = clear_kv_cache
        self._timeout_seconds = timeout_seconds
        self._step_seconds = timeout_seconds / _MAX_ATTEMPTS
        self._verify_checksums = verify_checksums
        self._clock = clock
        self._epoch: list[Member] = []
        self._num_bytes = 0

    @override
    async def publish(self, version: int) -> SyncReport:
        started = self._clock.now()
        updates = await self._bring(version, {engine.engine_id for engine in self._pool.engines})
        if not updates.reports:
            raise WeightSyncError(version=version, failures=list(updates.failures.values()))
        if self._verify_checksums:
            await compare_weights(self._pool.engines, updates, version, self._step_seconds)
        await self._pool.publish(version)
        return SyncReport(
            seconds=self._clock.now() - started,
            paused_seconds=updates.paused_seconds,
            bytes=self._num_bytes,
            num_engines=len(updates.reports),
            failures=tuple(updates.failures.values()),
        )

    @override
    async def repair(self) -> int:
        version = self._pool.version
        stale = {member.engine.engine_id for member in await self._members() if member.status.version != version}
        if not stale:
            return 0
        updates = await self._bring(version, stale)
        return len(updates.reports)

    @override
    async def close(self) -> None:
        await self._end_epoch()

    async def _bring(self, version: int, engine_ids: set[str]) -> Updates:
        """Bring the weights to these engines, in as many epochs as it takes before the deadline."""
        deadline = Deadline.after(self._timeout_seconds, self._clock)
        done = Updates()
        for _ in range(_MAX_ATTEMPTS):
            missing = [m for m in await self._members() if m.engine.engine_id in engine_ids - done.reports.keys()]
            if not missing or deadline.remaining <= 0:
                break
            try:
                updates = await self._transfer(version, missing, deadline)
            except (SendError, WeightUpdateError) as error:
                updates = Updates(failures={member.engine.engine_id: str(error) for member in missing})
            done.reports |= updates.reports
            done.failures |= updates.failures
            if updates.failures:
                log.warning("a weight transfer was aborted", version=version, failures=updates.failures)
                await self._end_epoch()
        lost = dict.fromkeys(engine_ids, "it has no server")
        done.failures = {k: v for k, v in (lost | done.failures).items() if k not in done.reports}
        return done

    async def _transfer(self, version: int, members: Sequence[Member], deadline: Deadline) -> Updates:
        """Bring the weights to the members.

        Raises:
            SendError: the group broke.
            WeightUpdateError: an engine could not take part.
        """
        plan = await self._sender.describe(deadline.remaining)
        await self._enter_epoch(members, plan)
        self._num_bytes = plan.num_bytes
        order = UpdateOrder(version, self._clear_kv_cache, min(self._step_seconds, deadline.remaining))
        return await self._move([member.engine for member in members], plan, order)

    @abstractmethod
    async def _connect(
        self, members: Sequence[Member], rendezvous: Rendezvous, plan: TransferPlan, seconds: float
    ) -> None:
        """Bring the sender and the members into one group, for transfers of this plan."""

    @abstractmethod
    async def _move(self, engines: Sequence[EngineControl], plan: TransferPlan, order: UpdateOrder) -> Updates:
        """Send the weights and load them."""

    async def _enter_epoch(self, members: Sequence[Member], plan: TransferPlan) -> None:
        """Be in a group with these members, and with nobody else."""
        if [member.key for member in members] == [member.key for member in self._epoch]:
            return
        await self._end_epoch()
        address, port = await self._sender.listen(self._step_seconds)
        world_size = 1 + sum(member.status.num_workers for member in members)
        self._epoch = list(members)
        await self._connect(members, Rendezvous(address, port, world_size), plan, self._step_seconds)
        log.info("a weight transfer epoch began", engines=[member.engine.engine_id for member in members])

    async def _end_epoch(self) -> None:
        members, self._epoch = self._epoch, []
        if not members:
            return
        await self._sender.close(self._step_seconds)
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(member.engine.leave_transfer(min(_LEAVE_SECONDS, self._step_seconds / 2)))

    async def _members(self) -> list[Member]:
        """The servers that there are now."""
        async with asyncio.TaskGroup() as tasks:
            asked = [(engine, tasks.create_task(engine.status())) for engine in self._pool.engines]
        members = [Member(engine, status.result()) for engine, status in asked]
        return [member for member in members if member.status.server_id]


def with_ranks(members: Sequence[Member]) -> Iterator[tuple[Member, int]]:
    """Members and the rank of each one's first worker; the sender is rank 0."""
    rank = 1
    for member in members:
        yield member, rank
        rank += member.status.num_workers
