"""Low-rank adapters (LoRA, arXiv:2106.09685): the base is frozen, and a small product beside each matrix learns."""

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from torch import Tensor, nn

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import LoRA


class Adapters:
    """`W x + alpha / r B A x` in the place of `W x`, for chosen linear layers of a module.

    The module stays as it is, names of its weights included; a hook adds what the adapters give. B starts at zero, so
    that the model starts as the base, and the base is what is left while they are disabled.
    """

    def __init__(self, module: nn.Module, spec: LoRA, *, head: nn.Module, seed: int) -> None:
        """Freeze a module and put adapters beside its linear layers.

        Args:
            module: The model.
            spec: Rank, scale and which layers.
            head: Output layer, which gets an adapter only where it is named.
            seed: Of A, the same on every rank.

        Raises:
            InvalidInputError: a target names no linear layer.
        """
        self._scale = spec.alpha / spec.rank
        self._is_enabled = True
        self.parameters: dict[str, nn.Parameter] = {}
        self._of_weight: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        module.requires_grad_(requires_grad=False)
        for name, layer in _targets(module, spec.target_modules, head):
            a = nn.Parameter(initial_a(name, spec.rank, layer.in_features, seed=seed).to(layer.weight))
            b = nn.Parameter(torch.zeros(layer.out_features, spec.rank).to(layer.weight))
            self.parameters |= {f"{name}.lora_A": a, f"{name}.lora_B": b}
            self._of_weight[f"{name}.weight"] = a, b
            layer.register_forward_hook(self._adding(a, b))

    @torch.no_grad()
    def merged(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the module with what its adapter adds to it, for engines that know nothing of adapters."""
        if name not in self._of_weight:
            return weight
        a, b = self._of_weight[name]
        return (weight.float() + self._scale * b.float() @ a.float()).to(weight.dtype)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The base model for the length of a block."""
        self._is_enabled = False
        try:
            yield
        finally:
            self._is_enabled = True

    def _adding(self, a: nn.Parameter, b: nn.Parameter) -> Any:
        def add(_layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
            return output + self._scale * F.linear(F.linear(inputs[0], a), b) if self._is_enabled else output

        return add


def initial_a(name: str, rank: int, num_inputs: int, *, seed: int) -> Tensor:
    """Where a layer's A starts: by its name, so that it is the same in any layout and beside any other adapters."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    random = torch.Generator().manual_seed(int.from_bytes(digest))
    bound = 1 / math.sqrt(num_inputs)
    return torch.empty(rank, num_inputs).uniform_(-bound, bound, generator=random)


def choose(layers: Collection[str], wanted: Sequence[str] | None) -> set[str]:
    """The layers that get an adapter.

    Args:
        layers: Names of those that could.
        wanted: Names or ends of names; all layers if none.

    Raises:
        InvalidInputError: one names no layer.
    """
    for target in wanted or ():
        if not any(_is_named(name, target) for name in layers):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            msg = f"model.lora.targetModules: {target!r} ends the name of no linear layer; they end with {known}"
            raise InvalidInputError(msg)
    return {name for name in layers if wanted is None or any(_is_named(name, target) for target in wanted)}


def _targets(module: nn.Module, wanted: Sequence[str] | None, head: nn.Module) -> list[tuple[str, nn.Linear]]:
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    chosen = choose(linear, wanted)
    return [(n, layer) for n, layer in linear.items() if n in chosen and (wanted is not None or layer is not head)]


def _is_named(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")
