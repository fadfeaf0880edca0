"""Qwen3-MoE: Qwen3 whose MLPs are mixtures of experts."""

import re
from collections.abc import Collection
from typing import Any

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.megatron.families import llama
from seatrial_trainer.policy.megatron.families.family import Family, WeightOf
from seatrial_trainer.policy.megatron.families.weights import Cut, Heads, Weight, Whole

EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.linear_fc([12])\.weight")


def settings(config: Any) -> dict[str, Any]:
    """See `Family`.

    Raises:
        InvalidInputError: some layers are dense.
    """
    if config.decoder_sparse_step != 1 or config.mlp_only_layers:
        raise InvalidInputError("model: layers without experts are not built into the megatron backend")
    return llama.settings(config) | expert_settings(config) | {"moe_router_pre_softmax": not config.norm_topk_prob}


def expert_settings(config: Any) -> dict[str, Any]:
    """Of mixtures of experts whose chosen experts' weights are a softmax."""
    return {
        "num_moe_experts": config.num_experts,
        "moe_ffn_hidden_size": config.moe_intermediate_size,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_dtype": "fp32",
    }


def weights(config: Any, _stored: Collection[str]) -> WeightOf:
    """See `Family`."""
    heads = Heads(config.num_attention_heads, config.num_key_value_heads)

    def of(name: str) -> Weight:
        if not (found := llama.LAYER.fullmatch(name)):
            return llama.outer_weight(name, config.vocab_size)
        layer, inner = f"model.layers.{found[1]}.", found[2]
        if inner == "mlp.router.weight":
            return Whole((f"{layer}mlp.gate.weight",))
        if expert := EXPERT.fullmatch(inner):
            here = f"{layer}mlp.experts.{expert[1]}."
            if expert[2] == "1":
                return Cut((f"{here}gate_proj.weight", f"{here}up_proj.weight"))
            return Cut((f"{here}down_proj.weight",), dim=1)
        return llama.layer_weight(layer, inner, heads)

    return of


FAMILY = Family(settings, weights)
