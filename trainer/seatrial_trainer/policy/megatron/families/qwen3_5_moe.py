"""Qwen3.5-MoE and Qwen3.6-MoE: Gated DeltaNet and gated attention in turns, experts beside one that all tokens use.

Their vision tower and the layers that predict further tokens are not trained. Experts are stored one by one or all
of a layer in one weight, and names begin with `model.language_model.` where there is a vision tower.
"""

from collections.abc import Collection
from typing import Any

from seatrial_trainer.policy.megatron.families import llama, qwen3_moe
from seatrial_trainer.policy.megatron.families.family import Family, WeightOf
from seatrial_trainer.policy.megatron.families.weights import Blocks, Cut, Heads, Weight, Whole


def settings(config: Any) -> dict[str, Any]:
    """See `Family`.

    Raises:
        InvalidInputError: the model does something that is not built here.
    """
    text = config.get_text_config()
    return (
        llama.attention_settings(text)
        | qwen3_moe.expert_settings(text)
        | {
            "ffn_hidden_size": text.moe_intermediate_size,
            "moe_shared_expert_intermediate_size": text.shared_expert_intermediate_size,
            "moe_shared_expert_gate": True,
            "layernorm_zero_centered_gamma": True,
            "attention_output_gate": True,
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": [int(kind == "linear_attention") for kind in text.layer_types],
            "linear_conv_kernel_dim": text.linear_conv_kernel_dim,
            "linear_key_head_dim": text.linear_key_head_dim,
            "linear_value_head_dim": text.linear_value_head_dim,
            "linear_num_key_heads": text.linear_num_key_heads,
            "linear_num_value_heads": text.linear_num_value_heads,
        }
    )


def weights(config: Any, stored: Collection[str]) -> WeightOf:
    """See `Family`."""
    text = config.get_text_config()
    heads = Heads(text.num_attention_heads, text.num_key_value_heads, is_gated=True)
    model = "model.language_model." if any(name.startswith("model.language_model.") for name in stored) else "model."
    experts_are_stacked = any(name.endswith(".mlp.experts.gate_up_proj") for name in stored)

    def of(name: str) -> Weight:
        if not (found := llama.LAYER.fullmatch(name)):
            return llama.outer_weight(name, text.vocab_size, model)
        layer, inner = f"{model}layers.{found[1]}.", found[2]
        if expert := qwen3_moe.EXPERT.fullmatch(inner):
            return _expert(f"{layer}mlp.experts.", int(expert[1]), expert[2], text, is_stacked=experts_are_stacked)
        mixer = _gated_delta_net(f"{layer}linear_attn.", text) | _router_and_shared_expert(f"{layer}mlp.")
        if inner == "self_attention.in_proj.layer_norm_weight":
            return Whole((f"{layer}input_layernorm.weight",))
        return mixer[inner] if inner in mixer else llama.layer_weight(layer, inner, heads)

    return of


def _expert(experts: str, number: int, linear: str, text: Any, *, is_stacked: bool) -> Weight:
    if is_stacked and linear == "1":
        rows = (text.moe_intermediate_size, text.moe_intermediate_size)
        return Blocks((f"{experts}gate_up_proj",), (rows,), expert=number)
    if is_stacked:
        return Cut((f"{experts}down_proj",), dim=1, expert=number)
    if linear == "1":
        return Cut((f"{experts}{number}.gate_proj.weight", f"{experts}{number}.up_proj.weight"))
    return Cut((f"{experts}{number}.down_proj.weight",), dim=1)


def _router_and_shared_expert(mlp: str) -> dict[str, Weight]:
    shared = f"{mlp}shared_expert."
    return {
        "mlp.router.weight": Whole((f"{mlp}gate.weight",)),
        "mlp.shared_experts.gate_weight": Whole((f"{mlp}shared_expert_gate.weight",)),
        "mlp.shared_experts.linear_fc1.weight": Cut((f"{shared}gate_proj.weight", f"{shared}up_proj.weight")),
        "mlp.shared_experts.linear_fc2.weight": Cut((f"{shared}down_proj.weight",), dim=1),
    }


def _gated_delta_net(mixer: str, text: Any) -> dict[str, Weight]:
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    query_key_value, head = (keys, keys, values), (text.linear_num_value_heads,)
    inputs = tuple(f"{mixer}in_proj_{part}.weight" for part in ("qkv", "z", "b", "a"))
    return {
        "self_attention.in_proj.weight": Blocks(inputs, (query_key_value, (values,), head, head)),
        "self_attention.conv1d.weight": Blocks((f"{mixer}conv1d.weight",), (query_key_value,)),
        "self_attention.A_log": Cut((f"{mixer}A_log",)),
        "self_attention.dt_bias": Cut((f"{mixer}dt_bias",)),
        "self_attention.out_norm.weight": Whole((f"{mixer}norm.weight",)),
        "self_attention.out_proj.weight": Cut((f"{mixer}out_proj.weight",), dim=1),
    }


FAMILY = Family(settings, weights, frozen=(r"^model\.visual\.", r"^mtp\."))
