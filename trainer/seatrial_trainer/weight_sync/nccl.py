"""Weight synchronisation by broadcast between GPUs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import override

from seatrial_rollout.engine.control import EngineControl
from seatrial_rollout.engine.errors import WeightUpdateError
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.collective import CollectiveSync, Member, Rendezvous, UpdateOrder, with_ranks
from seatrial_trainer.weight_sync.remote_sender import SendError
from seatrial_trainer.weight_sync.update import Updates, update_all


class NcclSync(CollectiveSync):
    """Weights go by vLLM's own receiver straight into the model, while the engine is paused.

    A member that is lost in a transfer costs the others a restart, since their models are half overwritten. NCCL has
    no deadline: engines end at theirs, and the sender's call when NCCL notices that they are gone.
    """

    @override
    async def _connect(self, members: Sequence[Member], rendezvous: Rendezvous, seconds: float) -> None:
        async with _one_error(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sender.connect(rendezvous.world_size, seconds))
            for member, rank in with_ranks(members):
                info = asdict(rendezvous) | {"rank_offset": rank, "packed": True}
                tasks.create_task(member.engine.join_transfer(info, seconds))

    @override
    async def _move(self, engines: Sequence[EngineControl], plan: TransferPlan, order: UpdateOrder) -> Updates:
        update_info = {
            "names": [spec.name for spec in plan.tensors],
            "dtype_names": [spec.dtype for spec in plan.tensors],
            "shapes": [spec.shape for spec in plan.tensors],
        }
        async with _one_error(), asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(update_all(engines, lambda engine: order.load(engine, update_info)))
            tasks.create_task(self._sender.send(with_digests=False))
        return loading.result()


@asynccontextmanager
async def _one_error() -> AsyncIterator[None]:
    """Raise the first transfer error of a task group by itself."""
    try:
        yield
    except* (SendError, WeightUpdateError) as group:
        raise group.exceptions[0] from None
