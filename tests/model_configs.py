"""The sizes of well-known models, as their `config.json` has them."""

from typing import Any

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}

QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40_960,
}

QWEN3_235B: dict[str, Any] = {
    **QWEN3_30B,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}

_QWEN35_35B_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262_144,
}

_QWEN35_397B_TEXT: dict[str, Any] = {
    **_QWEN35_35B_TEXT,
    "hidden_size": 4096,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "linear_num_value_heads": 64,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
}

QWEN35_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": _QWEN35_35B_TEXT,
}

QWEN35_397B: dict[str, Any] = {**QWEN35_35B, "text_config": _QWEN35_397B_TEXT}
