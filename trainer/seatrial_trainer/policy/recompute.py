"""Which activations are kept for the backward pass."""

from functools import partial
from typing import Any, Literal, assert_never

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from seatrial_trainer.policy.causal_lm import CausalLM

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001  operators have no public names
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
}


def apply_recompute(model: CausalLM, recompute: Literal["None", "Selective", "Full"]) -> None:
    """Set what the model's layers keep.

    `Full` keeps each layer's input and computes the layer again; `Selective` also keeps what matrix products and
    attention gave, and computes only the cheap rest again.
    """
    match recompute:
        case "None":
            return
        case "Selective":
            model.recompute_activations(partial(create_selective_checkpoint_contexts, _keep_products))
        case "Full":
            model.recompute_activations(None)
        case _:
            assert_never(recompute)


def _keep_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
