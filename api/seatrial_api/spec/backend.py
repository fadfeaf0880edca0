"""Which policy backend trains, and how it is laid out."""

from typing import ClassVar, Literal

from seatrial_api.base import ApiModel, Positive
from seatrial_api.rules import Rule, RuledModel


class Parallelism(ApiModel):
    """How the model is cut over ranks."""

    tensor: Positive = 1
    """TP: ranks that share each layer's matrices."""
    pipeline: Positive = 1
    """PP: stages of layers."""
    virtual_pipeline: Positive = 1
    """VPP: chunks of layers that each stage holds, interleaved; more of them idle less and exchange more."""
    context: Positive = 1
    """CP: ranks that share each sequence."""
    expert: Positive = 1
    """EP: ranks that share the experts."""
    expert_tensor: Positive = 1
    """ETP: ranks that share each expert's matrices."""


_DENSE = "self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context"
_EXPERT = "self.parallelism.expert * self.parallelism.expertTensor * self.parallelism.pipeline"


class TrainerSpec(RuledModel):
    """The policy backend."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.ranks % ({_DENSE}) == 0",
            f"tensor x pipeline x context = {{{_DENSE}}} does not divide {{self.ranks}} ranks; change parallelism, or "
            "make ranks a multiple",
            ".parallelism",
        ),
        Rule(
            f"self.ranks % ({_EXPERT}) == 0",
            f"expert x expertTensor x pipeline = {{{_EXPERT}}} does not divide {{self.ranks}} ranks; change "
            "parallelism, or make ranks a multiple",
            ".parallelism",
        ),
        Rule(
            f"self.backend == 'megatron' || ({_DENSE} == 1 && {_EXPERT} == 1)",
            "parallelism is megatron's, and {self.backend} lays the model out by itself: set all sizes to 1 or "
            "choose megatron",
            ".parallelism",
        ),
        Rule(
            "self.parallelism.virtualPipeline == 1 || self.parallelism.pipeline > 1",
            "parallelism.virtualPipeline is {self.parallelism.virtualPipeline} and a single stage has nothing to "
            "interleave; set it to 1, or pipeline above 1",
            ".parallelism.virtualPipeline",
        ),
        Rule(
            "!self.routerReplay || self.backend == 'megatron'",
            "routerReplay needs the megatron backend, not {self.backend}; set it to false or choose megatron",
            ".routerReplay",
        ),
    )

    backend: Literal["megatron", "torch", "tinker"] = "torch"
    """megatron-core, torch (data-parallel: each rank holds a part of every weight), or the Tinker API."""
    ranks: Positive = 1
    """Training processes; on GPU nodes one per GPU."""
    parallelism: Parallelism = Parallelism()
    """Layout over ranks."""
    max_tokens_per_microbatch: Positive = 16_384
    """Token budget of one packed micro-batch."""
    offload_optimizer: bool = False
    """Keep the optimiser's state in host memory."""
    recompute: Literal["None", "Selective", "Full"] = "None"
    """Activations that are recomputed in the backward pass."""
    router_replay: bool = False
    """Replay the experts that the engine chose (R3); mixture-of-experts models only."""
