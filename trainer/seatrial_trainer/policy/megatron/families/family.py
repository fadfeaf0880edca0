"""What a family of models tells of itself: its sizes for megatron-core, and where its weights come from."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from seatrial_trainer.policy.megatron.families.weights import Weight

type WeightOf = Callable[[str], Weight]
"""By the name of a megatron-core parameter, layers and experts counted over the whole model.

Raises KeyError for a name that the family does not have.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """One family."""

    settings: Callable[[Any], dict[str, Any]]
    """Fields of megatron-core's `TransformerConfig`, from a Hugging Face config."""
    weights: Callable[[Any, Collection[str]], WeightOf]
    """Where each weight comes from, for a Hugging Face config and the names of the weights in the model directory."""
    frozen: tuple[str, ...] = ()
    """Patterns of the names of weights that are not trained; exports have them as they were."""
