"""Weight synchronisation by broadcast over sockets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import override

from seatrial_rollout.engine.control import EngineControl
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.collective import CollectiveSync, Member, Rendezvous, UpdateOrder, with_ranks
from seatrial_trainer.weight_sync.update import Updates, update_all

_PATIENCE = 0.8
"""Part of a step's time for which a worker waits for bytes: it tells of missing ones before it is taken for dead."""


class GlooSync(CollectiveSync):
    """Engines generate while weights arrive in their host memory, and pause for loading them only."""

    @override
    async def _connect(
        self, members: Sequence[Member], rendezvous: Rendezvous, plan: TransferPlan, seconds: float
    ) -> None:
        for member, rank in with_ranks(members):
            info = asdict(rendezvous) | {"rank_offset": rank, "timeout_seconds": _PATIENCE * seconds}
            await member.engine.join_transfer(info, seconds)  # returns at once: workers join in the background
        await self._sender.connect(rendezvous.world_size, seconds)

    @override
    async def _move(self, engines: Sequence[EngineControl], plan: TransferPlan, order: UpdateOrder) -> Updates:
        for engine in engines:
            await engine.stage(plan, order.timeout_seconds)
        sent = await self._sender.send(order.timeout_seconds, with_digests=self._verify_checksums)
        return await update_all(engines, lambda engine: order.load(engine, {"digests": sent.digests}))
