"""Adapters that the service trained, merged into a model's own weights for engines."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load
from torch import Tensor

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.model_files import ModelFiles

_TRAINED = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_A\.weight")


@dataclass(frozen=True, slots=True)
class TrainedAdapters:
    """The adapters of one version of the policy."""

    scale: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    """A and B by the name of the weight that they add to."""

    @classmethod
    def read(cls, files: Mapping[str, bytes], weights: Collection[str]) -> Self:
        """Adapters in PEFT's format.

        Args:
            files: Contents by name.
            weights: Names of the model's weights.

        Raises:
            InvalidInputError: an adapter is of no matrix of the model.
        """
        config = json.loads(files["adapter_config.json"])
        tensors = load(files["adapter_model.safetensors"])
        pairs = {}
        for name, a in tensors.items():
            if found := _TRAINED.fullmatch(name):
                b = tensors[name.replace(".lora_A.", ".lora_B.")]
                pairs[_weight_name(found[1], a, weights)] = a, b
        return cls(config["lora_alpha"] / config["r"], pairs)

    def merged(self, directory: Path, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """The weights of a model directory, one at a time, with what the adapters add to them."""
        with ModelFiles(directory) as model:
            for name in model.names:
                weight = model.read(name)
                if name in self.pairs:
                    a, b = self.pairs[name]
                    weight = weight.float() + self.scale * b.float() @ a.float()
                yield name, weight.to(dtype)


def _weight_name(layer: str, a: Tensor, weights: Collection[str]) -> str:
    """The service leaves out what a vision tower adds to the names of a language model's weights."""
    candidates = [f"{layer}.weight", re.sub(r"^model\.", "model.language_model.", f"{layer}.weight")]
    name = next((name for name in candidates if name in weights), None)
    if name is None or a.ndim != 2:
        msg = f"trainer.backend: the service trained {layer}, which is no matrix of the model; engines cannot get it"
        raise InvalidInputError(msg)
    return name
