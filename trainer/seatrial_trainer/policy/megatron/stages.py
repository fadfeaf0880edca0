"""What stages of an interleaved pipeline exchange: activations and gradients whose lengths vary."""

from typing import Any, override

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator, _p2p_ops
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


def exchanges(config: TransformerConfig) -> dict[str, Any]:
    """Arguments of megatron-core's schedule: how stages reach each other, and the groups that it asks for."""
    if config.virtual_pipeline_model_parallel_size is None:
        return {}
    group = parallel_state.get_pipeline_model_parallel_group()
    return {
        "p2p_communicator": _InterleavedStages(group, config),
        "pg_collection": ProcessGroupCollection.use_mpu_process_groups(),
    }


class _InterleavedStages(P2PCommunicator):  # type: ignore[misc]  # untyped
    """Tells the lengths of what is passed on and of what is passed back by ways of their own.

    Two stages are each other's next and previous one at once. megatron-core sends activations and gradients between
    them by two groups, but their shapes by one, in an order in which each takes the other's for its own.
    """

    @override
    def _communicate_shapes(
        self, tensor_send_next: Tensor | None, tensor_send_prev: Tensor | None, recv_prev: bool, recv_next: bool
    ) -> tuple[list[int], list[int]]:
        device = torch.cuda.current_device()

        def shape_of(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else torch.tensor(tensor.shape, device=device)

        nothing = torch.zeros(3, dtype=torch.int64, device=device)
        from_prev, from_next = nothing.clone(), nothing.clone()
        requests = _p2p_ops(
            tensor_send_prev=shape_of(tensor_send_prev),
            tensor_recv_prev=from_prev if recv_prev else None,
            tensor_send_next=shape_of(tensor_send_next),
            tensor_recv_next=from_next if recv_next else None,
            group=self.pp_group,
            prev_pipeline_rank=self.prev_rank,
            next_pipeline_rank=self.next_rank,
        )
        for request in requests.values():
            request.wait()
        return from_prev.tolist(), from_next.tolist()
