"""This rank's part of the model, built by megatron-core."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from seatrial_api.spec.backend import TrainerSpec
from seatrial_trainer.policy.megatron.attention import PackRotary
from seatrial_trainer.policy.megatron.families import family_of
from seatrial_trainer.policy.megatron.layers import attends_by_itself, stage_layers
from seatrial_trainer.policy.megatron.layout import check_layout
from seatrial_trainer.policy.megatron.mesh import Mesh

_RECOMPUTE: dict[str, dict[str, Any]] = {
    "None": {},
    "Selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "Full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def transformer_config(hf_config: Any, trainer: TrainerSpec, dtype: torch.dtype) -> TransformerConfig:
    """megatron-core's config of a model in a layout.

    Raises:
        InvalidInputError: the layout does not divide the model.
    """
    sizes = trainer.parallelism
    settings = family_of(hf_config).settings(hf_config)
    check_layout(hf_config, trainer)
    has_gpu = torch.cuda.is_available()
    return TransformerConfig(
        **settings,
        **_RECOMPUTE[trainer.recompute],
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        virtual_pipeline_model_parallel_size=sizes.virtual_pipeline if sizes.virtual_pipeline > 1 else None,
        context_parallel_size=sizes.context,
        expert_model_parallel_size=sizes.expert,
        expert_tensor_parallel_size=sizes.expert_tensor,
        sequence_parallel=sizes.tensor > 1,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        batch_p2p_comm=sizes.virtual_pipeline == 1,
        bf16=dtype == torch.bfloat16,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106  tokens of text
        calculate_per_token_loss=True,  # the loss is a sum over tokens: nothing is averaged over replicas
        perform_initialization=False,  # weights come from the model directory
        use_cpu_initialization=not has_gpu,
        persist_layer_norm=has_gpu,
        gradient_accumulation_fusion=has_gpu,
        bias_activation_fusion=has_gpu,
        apply_rope_fusion=has_gpu,
    )


def build(config: TransformerConfig, hf_config: Any, mesh: Mesh) -> list[GPTModel]:
    """The chunks of layers that this rank holds, with embedding and head where they belong, without values yet."""
    return [_build_chunk(config, hf_config, mesh, turn) for turn in range(mesh.sizes.virtual_pipeline)]


def _build_chunk(config: TransformerConfig, hf_config: Any, mesh: Mesh, turn: int) -> GPTModel:
    chunk, vp_stage = mesh.chunks[turn], turn if mesh.sizes.virtual_pipeline > 1 else None
    is_last = chunk == mesh.num_chunks - 1
    text = hf_config.get_text_config()
    num_tokens = -(-text.vocab_size // mesh.sizes.tensor) * mesh.sizes.tensor
    model = GPTModel(
        config,
        stage_layers(config, vp_stage),
        vocab_size=num_tokens,
        max_sequence_length=text.max_position_embeddings,
        pre_process=chunk == 0,
        post_process=is_last,
        share_embeddings_and_output_weights=text.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=text.rope_parameters["rope_theta"],
        rotary_percent=text.rope_parameters.get("partial_rotary_factor", 1.0),
        vp_stage=vp_stage,
    )
    if attends_by_itself(config):
        model.rotary_pos_emb = PackRotary(model.rotary_pos_emb.inv_freq)
    if is_last:  # it gets the hidden states of chosen tokens, which every tensor rank holds
        model.output_layer.sequence_parallel = False
        model.output_layer.allreduce_dgrad = mesh.sizes.tensor > 1
    return model.to(torch.cuda.current_device())


def distribute(model: GPTModel, config: TransformerConfig) -> DistributedDataParallel:
    """A chunk with its gradients in one 32-bit buffer; replicas add them up and share the optimiser's state."""
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    return DistributedDataParallel(config, settings, model)
