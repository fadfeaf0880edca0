"""Weight synchronisation by broadcast between GPUs."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import override

from seatrial_rollout.engine.control import EngineControl
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.collective import CollectiveSync, Member, Rendezvous, UpdateOrder, with_ranks
from seatrial_trainer.weight_sync.remote_sender import first_failure
from seatrial_trainer.weight_sync.update import Updates, update_all


class NcclSync(CollectiveSync):
    """Weights go by vLLM's own receiver straight into the model, while the engine is paused.

    A member that is lost in a transfer costs the others a restart, since their models are half overwritten. NCCL waits
    for ever for a peer that is gone: engines are ended at their deadline, and the sender aborts its group at its own.
    """

    @override
    async def _connect(
        self, members: Sequence[Member], rendezvous: Rendezvous, plan: TransferPlan, seconds: float
    ) -> None:
        packed = {"packed": True, "packed_buffer_size_bytes": plan.bucket_bytes}
        async with first_failure(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sender.connect(rendezvous.world_size, seconds))
            for member, rank in with_ranks(members):
                info = asdict(rendezvous) | packed | {"rank_offset": rank}
                tasks.create_task(member.engine.join_transfer(info, seconds))

    @override
    async def _move(self, engines: Sequence[EngineControl], plan: TransferPlan, order: UpdateOrder) -> Updates:
        update_info = {
            "names": [spec.name for spec in plan.tensors],
            "dtype_names": [spec.dtype for spec in plan.tensors],
            "shapes": [spec.shape for spec in plan.tensors],
        }
        async with first_failure(), asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(update_all(engines, lambda engine: order.load(engine, update_info)))
            tasks.create_task(self._sender.send(order.timeout_seconds, with_digests=False))
        return loading.result()
