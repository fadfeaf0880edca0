"""This rank's place in the mesh of ranks: tensor, pipeline, context, expert and data parallel."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from seatrial_api.spec.backend import Parallelism


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes and own coordinates; the process group of all ranks exists already."""

    sizes: Parallelism
    data: int
    """Replicas of the model."""
    tensor_rank: int
    pipeline_rank: int
    context_rank: int
    expert_rank: int
    expert_tensor_rank: int
    data_rank: int
    expert_data_rank: int
    """Among the ranks that hold the same experts."""

    @classmethod
    def form(cls, sizes: Parallelism, *, seed: int) -> Self:
        """Form megatron-core's process groups; all ranks call it together, and one alone is a group too."""
        if not dist.is_initialized():
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=sizes.tensor,
            pipeline_model_parallel_size=sizes.pipeline,
            virtual_pipeline_model_parallel_size=sizes.virtual_pipeline if sizes.virtual_pipeline > 1 else None,
            context_parallel_size=sizes.context,
            expert_model_parallel_size=sizes.expert,
            expert_tensor_parallel_size=sizes.expert_tensor,
            create_gloo_process_groups=False,
        )
        model_parallel_cuda_manual_seed(seed)
        return cls(
            sizes=sizes,
            data=parallel_state.get_data_parallel_world_size(),
            tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
            pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
            context_rank=parallel_state.get_context_parallel_rank(),
            expert_rank=parallel_state.get_expert_model_parallel_rank(),
            expert_tensor_rank=parallel_state.get_expert_tensor_parallel_rank(),
            data_rank=parallel_state.get_data_parallel_rank(),
            expert_data_rank=parallel_state.get_expert_data_parallel_rank(),
        )

    @property
    def chunks(self) -> list[int]:
        """Number of each chunk of layers that this rank holds; they are dealt to the stages of the pipeline in turn."""
        return [turn * self.sizes.pipeline + self.pipeline_rank for turn in range(self.sizes.virtual_pipeline)]

    @property
    def num_chunks(self) -> int:
        """Chunks of layers over all stages."""
        return self.sizes.pipeline * self.sizes.virtual_pipeline

    @property
    def row_multiple(self) -> int:
        """Tokens of a pack come in multiples of this, so that the ranks that share them hold equally many."""
        context = self.sizes.context
        return self.sizes.tensor * (2 * context if context > 1 else 1)

    def num_turns(self, num_batches: int) -> int:
        """Micro-batches that every replica runs: as many as the busiest has, in whole rounds of interleaved stages."""
        counted = torch.tensor([num_batches], device=torch.cuda.current_device())
        self.max_(counted)
        turns = int(counted)
        return turns + (-turns % self.sizes.pipeline if self.sizes.virtual_pipeline > 1 else 0)

    def joined(self, values: Tensor, own: Tensor, count: int) -> Tensor:
        """One value a target of a pack, from all ranks that share it; the gradient reaches those of this rank alone.

        Args:
            values: This rank's.
            own: Which targets they are of.
            count: How many targets there are.
        """
        if self.sizes.context == 1:
            return values
        whole = torch.zeros(count, dtype=values.dtype, device=values.device)
        whole[own] = values.detach()
        dist.all_reduce(whole, group=parallel_state.get_context_parallel_group())
        return whole.index_copy(0, own, values)

    def sum_(self, tensor: Tensor) -> None:
        """Add up over replicas what the ranks of each last stage hold alike and all others hold zeros of."""
        dist.all_reduce(tensor)
        tensor /= self.sizes.tensor * self.sizes.context

    def max_(self, tensor: Tensor) -> None:
        """Take the largest over all ranks, element by element, in place."""
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
