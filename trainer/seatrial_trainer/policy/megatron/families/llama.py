"""Llama, Qwen2 and Qwen3: dense transformers with grouped queries, gated MLPs and rotary positions."""

import re
from collections.abc import Collection
from typing import Any

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.megatron.families.family import Family, WeightOf
from seatrial_trainer.policy.megatron.families.weights import Cut, Heads, QueryKeyValue, Vocabulary, Weight, Whole

LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


def settings(config: Any) -> dict[str, Any]:
    """See `Family`.

    Raises:
        InvalidInputError: the model does something that is not built here.
    """
    return attention_settings(config) | {"ffn_hidden_size": config.intermediate_size}


def attention_settings(config: Any) -> dict[str, Any]:
    """All but the MLPs.

    Raises:
        InvalidInputError: the model does something that is not built here.
    """
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        msg = f"model: rope_type {rope['rope_type']!r} is not built into the megatron backend; use backend torch"
        raise InvalidInputError(msg)
    if getattr(config, "use_sliding_window", False):
        raise InvalidInputError("model: sliding windows are not built into the megatron backend; use backend torch")
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "layernorm_epsilon": config.rms_norm_eps,
        "qk_layernorm": config.model_type.startswith("qwen3"),
        "add_qkv_bias": config.model_type == "qwen2" or getattr(config, "attention_bias", False),
    }


def weights(config: Any, _stored: Collection[str]) -> WeightOf:
    """See `Family`."""
    heads = Heads(config.num_attention_heads, config.num_key_value_heads)

    def of(name: str) -> Weight:
        if found := LAYER.fullmatch(name):
            return layer_weight(f"model.layers.{found[1]}.", found[2], heads)
        return outer_weight(name, config.vocab_size)

    return of


def outer_weight(name: str, vocab_size: int, model: str = "model.") -> Weight:
    """A weight outside of the layers, whose names begin with `model`."""
    match name:
        case "embedding.word_embeddings.weight":
            return Vocabulary((f"{model}embed_tokens.weight",), vocab_size)
        case "output_layer.weight":
            return Vocabulary(("lm_head.weight",), vocab_size)
        case "decoder.final_layernorm.weight":
            return Whole((f"{model}norm.weight",))
        case _:
            raise KeyError(name)


def layer_weight(layer: str, name: str, heads: Heads) -> Weight:
    """A weight of a layer, with Transformer Engine's names for the norms that it fuses into what follows them."""
    before_attention, before_mlp = (Whole((f"{layer}{one}_layernorm.weight",)) for one in ("input", "post_attention"))

    def qkv(kind: str) -> QueryKeyValue:
        return QueryKeyValue(tuple(f"{layer}self_attn.{one}_proj.{kind}" for one in "qkv"), heads)

    return {
        "input_layernorm.weight": before_attention,
        "self_attention.linear_qkv.layer_norm_weight": before_attention,
        "self_attention.linear_qkv.weight": qkv("weight"),
        "self_attention.linear_qkv.bias": qkv("bias"),
        "self_attention.q_layernorm.weight": Whole((f"{layer}self_attn.q_norm.weight",)),
        "self_attention.k_layernorm.weight": Whole((f"{layer}self_attn.k_norm.weight",)),
        "self_attention.linear_proj.weight": Cut((f"{layer}self_attn.o_proj.weight",), dim=1),
        "pre_mlp_layernorm.weight": before_mlp,
        "mlp.linear_fc1.layer_norm_weight": before_mlp,
        "mlp.linear_fc1.weight": Cut((f"{layer}mlp.gate_proj.weight", f"{layer}mlp.up_proj.weight")),
        "mlp.linear_fc2.weight": Cut((f"{layer}mlp.down_proj.weight",), dim=1),
    }[name]


FAMILY = Family(settings, weights)
