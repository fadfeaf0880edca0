"""The families of models that the megatron backend trains, a module each."""

from typing import Any

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.megatron.families import llama, qwen3_5_moe, qwen3_moe
from seatrial_trainer.policy.megatron.families.family import Family

FAMILIES: dict[str, Family] = {
    "llama": llama.FAMILY,
    "qwen2": llama.FAMILY,
    "qwen3": llama.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "qwen3_5_moe": qwen3_5_moe.FAMILY,
    "qwen3_5_moe_text": qwen3_5_moe.FAMILY,
}
"""By `model_type` of a Hugging Face config."""


def family_of(config: Any) -> Family:
    """The family of a model.

    Raises:
        InvalidInputError: there is none.
    """
    if config.model_type not in FAMILIES:
        msg = (
            f"model: the megatron backend has no mapping for model_type {config.model_type!r}; it has "
            f"{', '.join(sorted(FAMILIES))}; use backend torch"
        )
        raise InvalidInputError(msg)
    return FAMILIES[config.model_type]
