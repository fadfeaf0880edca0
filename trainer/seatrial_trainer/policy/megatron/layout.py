"""Whether a layout fits a model; nothing here needs megatron-core or a GPU."""

from typing import Any

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.backend import TrainerSpec
from seatrial_trainer.policy.megatron.families import family_of
from seatrial_trainer.policy.sizing.layouts import layout_problems
from seatrial_trainer.policy.sizing.shapes import model_shape


def check_layout(hf_config: Any, trainer: TrainerSpec) -> None:
    """Refuse a layout that does not divide the model, or that is not built.

    Raises:
        InvalidInputError: with the field, its value and the model's count.
    """
    settings = family_of(hf_config).settings(hf_config)
    for problem in layout_problems(model_shape(hf_config.to_dict()), trainer):
        raise InvalidInputError(str(problem).removeprefix("spec."))
    if trainer.router_replay and "num_moe_experts" not in settings:
        raise InvalidInputError("trainer.routerReplay: the model has no experts to choose from; set it to false")
