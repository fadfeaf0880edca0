"""How much memory a rank needs: an estimate to choose layouts by, term by term with its source.

Not counted is what a model's shape does not tell: how unevenly tokens go to experts, and what an allocator leaves in
holes beyond `RUNTIME_BYTES`.
"""

from dataclasses import dataclass

from seatrial_api.spec.backend import TrainerSpec
from seatrial_trainer.policy.sizing.activations import kept_values, working_values
from seatrial_trainer.policy.sizing.layouts import num_expert_replicas, num_replicas
from seatrial_trainer.policy.sizing.parameters import Parameters, adapter_parameters, stage_layers, stage_parameters
from seatrial_trainer.policy.sizing.shapes import ModelShape

GIB = 2**30

RUNTIME_BYTES = 3 * GIB
"""CUDA's context, NCCL's buffers and what the allocator loses, a rule of thumb."""

LOGITS_BYTES = 512 << 20
"""Of a rank's part of the logits that exists at once on a GPU; five tensors of that size are alive at its peak: logits
as they come and in 32 bits, their softmax, and two of the entropy."""

_LOGIT_TENSORS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank is given to do."""

    bytes_per_value: int
    """Of a weight and an activation: 2 for bfloat16, 4 for float32."""
    num_microbatches: int
    """Of one replica in a step; no more of them are in flight."""
    adapter_rank: int = 0
    """Of adapters, which are trained in the place of the weights; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank, by what they hold."""

    stage: int
    num_layers: int
    parameters: Parameters
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Kept from forward passes until their backward pass."""
    working: int
    """Of the layer that is computed just then, gradients included."""
    logits: int
    host: int
    """Of the machine's memory: the optimiser, where it is offloaded."""

    @property
    def total(self) -> int:
        """On the GPU."""
        held = self.weights + self.gradients + self.optimizer + self.activations
        return held + max(self.working, self.logits) + RUNTIME_BYTES


def rank_memories(shape: ModelShape, trainer: TrainerSpec, load: Load) -> list[RankMemory]:
    """Memory of a rank of each pipeline stage, for a layout that divides the model."""
    return [_rank_memory(shape, trainer, load, stage) for stage in range(trainer.parallelism.pipeline)]


def _rank_memory(shape: ModelShape, trainer: TrainerSpec, load: Load, stage: int) -> RankMemory:
    sizes, parameters = trainer.parallelism, stage_parameters(shape, trainer.parallelism, stage)
    layers = stage_layers(shape, sizes)[stage]
    tokens = -(-trainer.max_tokens_per_microbatch // sizes.context)
    kept = sum(kept_values(shape, mixer, sizes, tokens, trainer.recompute) for mixer in layers)
    working = max(working_values(shape, mixer, sizes, tokens, trainer.recompute) for mixer in set(layers))
    adapters = adapter_parameters(shape, sizes, stage, load.adapter_rank)
    trained = Parameters(dense=adapters) if adapters else parameters
    optimizer, host = _optimizer(trained, trainer, load)
    return RankMemory(
        stage=stage,
        num_layers=len(layers),
        parameters=parameters,
        weights=(parameters.total + adapters) * load.bytes_per_value,
        gradients=trained.total * 4,
        optimizer=optimizer,
        activations=kept * _chunks_in_flight(trainer, load, stage) * load.bytes_per_value // sizes.virtual_pipeline,
        working=working * load.bytes_per_value,
        logits=_logits(shape, tokens, load) if stage == sizes.pipeline - 1 else 0,
        host=host,
    )


def _chunks_in_flight(trainer: TrainerSpec, load: Load, stage: int) -> int:
    """Chunks of layers that a stage has computed forward and not yet backward, at most.

    p - s with one chunk a stage (1F1B, arXiv:2104.04473, section 2.2.1); interleaved, 2 (p - s - 1) + (v - 1) p forward
    passes come before the first backward pass (section 2.2.2, and megatron-core's schedules).
    """
    stages, chunks = trainer.parallelism.pipeline, trainer.parallelism.virtual_pipeline
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    return min(ahead + 1, load.num_microbatches * chunks)


def _optimizer(parameters: Parameters, trainer: TrainerSpec, load: Load) -> tuple[int, int]:
    """Bytes of the optimiser on the GPU and on the host.

    Cut over replicas by the distributed optimiser (Megatron-LM, docs/user-guide/features/dist_optimizer.md): 6 + 12 / d
    bytes a parameter in all with bfloat16 weights, 8 + 8 / d with float32 ones, of which weights and 32-bit gradients
    are the first part. Offloaded moments leave the masters on the GPU, and have copies of masters and gradients beside
    them on the host.
    """
    dense, experts = num_replicas(trainer) * trainer.parallelism.context, num_expert_replicas(trainer)
    share = -(-parameters.dense // dense) + -(-parameters.experts // experts)
    masters = 0 if load.bytes_per_value == 4 else 4 * share
    if trainer.offload_optimizer:
        return masters, 16 * share
    return masters + 8 * share, 0


def _logits(shape: ModelShape, tokens: int, load: Load) -> int:
    """The head's part: logits in pieces; hidden states of all tokens as they come, those chosen, and both gradients."""
    return _LOGIT_TENSORS * LOGITS_BYTES + 4 * tokens * shape.hidden_size * load.bytes_per_value
