"""Which modules make up the layers of a stage: Transformer Engine's on a GPU, local ones elsewhere."""

import copy
import dataclasses
from typing import Any, override

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_linear_attention_pattern,
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_submodules,
    get_gpt_layer_with_transformer_engine_submodules,
)
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)
from torch import Tensor, nn

from seatrial_trainer.policy.megatron.attention import PackedCoreAttention
from seatrial_trainer.policy.megatron.gated_delta_net import PackedGatedDeltaNet


def stage_layers(config: TransformerConfig, vp_stage: int | None = None) -> ModuleSpec | TransformerBlockSubmodules:
    """The layers of this rank's stage, or of one of its parts where stages are interleaved."""
    if torch.cuda.is_available():
        return _fused_layers(config, vp_stage)
    kinds = [_local_layer(config)] * config.num_layers
    if config.linear_attention_freq is not None:
        recurrent = _with_gated_delta_net(kinds[0])
        kinds = [recurrent if is_linear else full for full, is_linear in zip(kinds, _pattern(config), strict=True)]
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    own = kinds[first : first + get_num_layers_to_build(config, vp_stage=vp_stage)]
    return TransformerBlockSubmodules(
        [ModuleSpec(module=TransformerLayer, submodules=layer) for layer in own], layer_norm=RMSNorm
    )


def attends_by_itself(config: TransformerConfig) -> bool:
    """Whether attention is ours: Transformer Engine's has no CPU, and cuts each sequence over context ranks."""
    return not torch.cuda.is_available() or config.context_parallel_size > 1


class RMSNorm(nn.RMSNorm):
    """Torch's, with the mark by which megatron-core adds up its gradient over the parts of a sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_options: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self._is_zero_centred = config.layernorm_zero_centered_gamma
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # megatron's mark

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not self._is_zero_centred:
            return super().forward(x)
        return F.rms_norm(x.float(), self.normalized_shape, 1.0 + self.weight.float(), self.eps).type_as(x)


class _GatedNorm(RMSNorm):
    """Of what Gated DeltaNet gives out: its weight is about one also where those of other norms are about zero."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__(_with_plain_norms(config), hidden_size, eps)


class _FusedGatedNorm:
    """The same by Transformer Engine."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float) -> Any:
        from megatron.core.extensions.transformer_engine import TENorm  # noqa: PLC0415  only on a GPU

        return TENorm(_with_plain_norms(config), hidden_size, eps)


def _with_plain_norms(config: TransformerConfig) -> TransformerConfig:
    plain = copy.copy(config)
    plain.layernorm_zero_centered_gamma = False
    return plain


def _fused_layers(config: TransformerConfig, vp_stage: int | None) -> ModuleSpec | TransformerBlockSubmodules:
    if config.linear_attention_freq is None:
        submodules = get_gpt_layer_with_transformer_engine_submodules(
            qk_layernorm=config.qk_layernorm, num_experts=config.num_moe_experts, moe_grouped_gemm=False
        )
        if attends_by_itself(config):
            submodules.self_attention.submodules.core_attention = PackedCoreAttention
        return ModuleSpec(module=TransformerLayer, submodules=submodules)
    block = get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=vp_stage)
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        if attention.module is GatedDeltaNet:
            attention.module = PackedGatedDeltaNet
            attention.submodules.out_norm = _FusedGatedNorm
        elif attends_by_itself(config):
            attention.submodules.core_attention = PackedCoreAttention
    return block


def _local_layer(config: TransformerConfig) -> TransformerLayerSubmodules:
    submodules = get_gpt_layer_local_submodules(
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
    )
    attention = submodules.self_attention
    attention.submodules.core_attention = PackedCoreAttention
    if config.qk_layernorm:
        attention.submodules.q_layernorm = attention.submodules.k_layernorm = RMSNorm
    submodules.input_layernorm = submodules.pre_mlp_layernorm = RMSNorm
    return submodules


def _with_gated_delta_net(layer: TransformerLayerSubmodules) -> TransformerLayerSubmodules:
    parts = GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=_GatedNorm, out_proj=RowParallelLinear)
    return dataclasses.replace(layer, self_attention=ModuleSpec(module=PackedGatedDeltaNet, submodules=parts))


def _pattern(config: TransformerConfig) -> list[bool]:
    """Whether each layer of the model is Gated DeltaNet."""
    return [bool(kind) for kind in get_linear_attention_pattern(config)]
