"""AdamW over this rank's share of the weights."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_trainer.policy.batch import OptimStats
from seatrial_trainer.policy.megatron.mesh import Mesh


class Optimizer:
    """megatron-core's optimiser: 32-bit masters, and its state cut over replicas."""

    def __init__(
        self,
        chunks: Sequence[DistributedDataParallel],
        spec: OptimizerSpec,
        dtype: torch.dtype,
        mesh: Mesh,
        *,
        offload: bool,
    ) -> None:
        self._chunks = list(chunks)
        self._mesh = mesh
        self._weight_decay = spec.weight_decay
        self.inner: Any = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=spec.learning_rate,
                weight_decay=spec.weight_decay,
                adam_beta1=spec.betas[0],
                adam_beta2=spec.betas[1],
                adam_eps=spec.epsilon,
                clip_grad=spec.max_grad_norm,
                bf16=dtype == torch.bfloat16,
                params_dtype=dtype,
                use_distributed_optimizer=True,
                optimizer_cpu_offload=offload and torch.cuda.is_available(),
                optimizer_offload_fraction=1.0 if offload else 0.0,
            ),
            self._chunks,
            use_gloo_process_groups=False,
        )

    def step(self, learning_rate: float) -> OptimStats:
        """Add up the gradient over ranks, clip, step, and forget it; a gradient that is not finite changes nothing."""
        finalize_model_grads(self._chunks)
        norm, is_finite = math.nan, self._gradient_is_finite()
        if is_finite:
            for group in self.inner.param_groups:
                group["lr"] = learning_rate * group.get("lr_mult", 1.0)
                group["weight_decay"] = self._weight_decay * group.get("wd_mult", 1.0)
            _, norm, _ = self.inner.step()
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self.inner.zero_grad()
        return OptimStats(grad_norm=float(norm), learning_rate=learning_rate, skipped=not is_finite)

    def _gradient_is_finite(self) -> bool:
        buffers = [buffer for chunk in self._chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        found = sum(float((~buffer.grad_data.isfinite()).any()) for buffer in buffers)
        faults = torch.tensor([found], device=torch.cuda.current_device())
        self._mesh.max_(faults)
        return not faults.item()
