"""A model as numbers: what its `config.json` says of sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seatrial_api.errors import InvalidInputError

Mixer = Literal["attention", "linear_attention"]
"""What mixes the tokens of a layer."""

_WITH_QK_NORM = ("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe")
_WITH_OUTPUT_GATE = ("qwen3_5", "qwen3_5_moe")
FAMILIES = ("llama", "qwen2", *_WITH_QK_NORM)
"""Families whose sizes are known, by `model_type`."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_size: int
    has_qk_norm: bool = False
    has_bias: bool = False
    has_output_gate: bool = False
    """Queries come with a gate of the same size, which the result is multiplied by."""

    @property
    def query_size(self) -> int:
        """Of all heads."""
        return self.heads * self.head_size

    @property
    def key_size(self) -> int:
        """Of all key heads; values are as large."""
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A gated delta rule (arXiv:2412.06464) behind a short convolution."""

    key_heads: int
    value_heads: int
    key_head_size: int
    value_head_size: int
    convolution: int
    """Tokens that the convolution sees."""

    @property
    def key_size(self) -> int:
        """Of all key heads; queries are as large."""
        return self.key_heads * self.key_head_size

    @property
    def value_size(self) -> int:
        """Of all value heads; the gate is as large."""
        return self.value_heads * self.value_head_size


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of an MLP."""

    count: int
    chosen: int
    """Experts that a token goes to."""
    width: int
    shared_width: int = 0
    """Width of the expert that every token goes to; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A causal language model; of one that also sees, the language model alone."""

    hidden_size: int
    vocabulary: int
    mixers: tuple[Mixer, ...]
    """By layer."""
    attention: Attention
    linear_attention: LinearAttention | None
    mlp_width: int
    """0 where every layer has experts."""
    experts: Experts | None
    ties_embeddings: bool

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.mixers)


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face `config.json` describes.

    Raises:
        InvalidInputError: the family is not known here, or a size is missing.
    """
    text: Mapping[str, Any] = {**config, **config.get("text_config", {})}
    family = str(text.get("model_type")).removesuffix("_text")
    if family not in FAMILIES:
        msg = f"model: sizes of model_type {family!r} are not known; known are {', '.join(FAMILIES)}"
        raise InvalidInputError(msg)
    try:
        return _shape(family, text, ties_embeddings=_ties_embeddings(config))
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"model: its config.json of a {family} lacks a size, or has a strange one: {exc}"
        raise InvalidInputError(msg) from exc


def _shape(family: str, text: Mapping[str, Any], *, ties_embeddings: bool) -> ModelShape:
    heads = int(text["num_attention_heads"])
    has_experts = family.endswith("_moe")
    if has_experts and (text.get("decoder_sparse_step", 1) != 1 or text.get("mlp_only_layers")):
        raise ValueError("layers without experts among others")
    mixers = _mixers(text)
    return ModelShape(
        hidden_size=int(text["hidden_size"]),
        vocabulary=int(text["vocab_size"]),
        mixers=mixers,
        attention=Attention(
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_size=int(text.get("head_dim") or text["hidden_size"] // heads),
            has_qk_norm=family in _WITH_QK_NORM,
            has_bias=family == "qwen2" or bool(text.get("attention_bias")),
            has_output_gate=family in _WITH_OUTPUT_GATE,
        ),
        linear_attention=_linear_attention(text) if "linear_attention" in mixers else None,
        mlp_width=0 if has_experts else int(text["intermediate_size"]),
        experts=_experts(text) if has_experts else None,
        ties_embeddings=ties_embeddings,
    )


def _mixers(text: Mapping[str, Any]) -> tuple[Mixer, ...]:
    count = int(text["num_hidden_layers"])
    if "linear_num_key_heads" not in text:
        return tuple(_mixer("full_attention") for _ in range(count))
    every = int(text.get("full_attention_interval", 4))
    default = ["full_attention" if (index + 1) % every == 0 else "linear_attention" for index in range(count)]
    kinds = text.get("layer_types") or default
    if len(kinds) != count:
        msg = f"{len(kinds)} layer_types for {count} layers"
        raise ValueError(msg)
    return tuple(_mixer(kind) for kind in kinds)


def _mixer(kind: str) -> Mixer:
    return "linear_attention" if kind == "linear_attention" else "attention"


def _linear_attention(text: Mapping[str, Any]) -> LinearAttention:
    return LinearAttention(
        key_heads=int(text["linear_num_key_heads"]),
        value_heads=int(text["linear_num_value_heads"]),
        key_head_size=int(text["linear_key_head_dim"]),
        value_head_size=int(text["linear_value_head_dim"]),
        convolution=int(text["linear_conv_kernel_dim"]),
    )


def _experts(text: Mapping[str, Any]) -> Experts:
    return Experts(
        count=int(text["num_experts"] if "num_experts" in text else text["num_local_experts"]),
        chosen=int(text["num_experts_per_tok"]),
        width=int(text["moe_intermediate_size"]),
        shared_width=int(text.get("shared_expert_intermediate_size") or 0),
    )


def _ties_embeddings(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", False)))
