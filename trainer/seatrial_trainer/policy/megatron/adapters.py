"""Low-rank adapters (LoRA) beside megatron-core's linear layers, named, started and trained as the torch backend's.

megatron-core fuses linear layers: queries, keys and values are one matrix, and so are gate and up projection. Each of
those keeps an adapter of its own, in the shape that it has in a Hugging Face model. Adapters are small, so every tensor
rank has all of them; it computes with the rows or columns that its share of the matrix has, and gradients are added
up over the ranks once a step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  its customary name
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import LoRA
from seatrial_trainer.policy.adapters import choose, initial_a
from seatrial_trainer.policy.megatron.families.weights import Cut, Vocabulary, Weight, Whole
from seatrial_trainer.policy.megatron.mesh import Mesh
from seatrial_trainer.policy.megatron.transfer import WeightTransfer


class Adapters:
    """The adapters of this rank's layers; the model's own weights are frozen."""

    def __init__(
        self, chunks: Sequence[nn.Module], transfer: WeightTransfer, spec: LoRA, mesh: Mesh, *, seed: int
    ) -> None:
        """Freeze the chunks and put adapters beside their linear layers.

        Args:
            chunks: Of the model, with their weights.
            transfer: Knows of what each weight is made.
            spec: Rank, scale and which layers.
            mesh: This rank's place.
            seed: Of A, the same on every rank.

        Raises:
            InvalidInputError: a target names no linear layer, or a stage of the pipeline has none of them.
        """
        linears = [dict(_linear_layers(chunk, transfer)) for chunk in chunks]
        chosen = choose(_names_on_all_ranks(linears), spec.target_modules)
        self._of_weight: dict[nn.Parameter, Adapter] = {}
        for chunk, layers in zip(chunks, linears, strict=True):
            chunk.requires_grad_(requires_grad=False)
            wanted = {layer: weight for layer, weight in layers.items() if chosen.intersection(_names(weight))}
            if not wanted:
                msg = "model.lora.targetModules: a stage of the pipeline has none of them; name layers of every stage"
                raise InvalidInputError(msg)
            for layer, weight in wanted.items():
                adapter = Adapter(weight, layer.weight, chosen, spec, mesh, seed=seed)
                layer.adapter = adapter
                layer.register_forward_hook(adapter.add)
                self._of_weight[layer.weight] = adapter
            if isinstance(embedding := getattr(chunk, "embedding", None), nn.Module):
                embedding.register_forward_hook(_as_differentiable)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, by its name over the whole model."""
        for adapter in self._of_weight.values():
            yield from adapter.by_name()

    @torch.no_grad()
    def restore(self, values: dict[str, Tensor]) -> None:
        """Set what is trained."""
        for name, parameter in self.named_parameters():
            parameter.copy_(values[name])

    @torch.no_grad()
    def merged(self, weight: nn.Parameter) -> Tensor:
        """This rank's share of a weight with what its adapter adds, for engines that know nothing of adapters."""
        adapter = self._of_weight.get(weight)
        return weight if adapter is None else adapter.merged(weight)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The base model for the length of a block."""
        for adapter in self._of_weight.values():
            adapter.is_enabled = False
        try:
            yield
        finally:
            for adapter in self._of_weight.values():
                adapter.is_enabled = True


class Adapter(nn.Module):
    """What is added to one linear layer of megatron-core: `alpha / r B A x` for each Hugging Face layer in it."""

    def __init__(
        self, weight: Weight, parameter: nn.Parameter, chosen: set[str], spec: LoRA, mesh: Mesh, *, seed: int
    ) -> None:
        super().__init__()
        self._weight = weight
        self._rank, self._num_ranks = mesh.tensor_rank, mesh.sizes.tensor
        self._takes_columns = isinstance(weight, Cut) and weight.dim == 1
        self._scale = spec.alpha / spec.rank
        self.is_enabled = True
        shares = [torch.empty_like(parameter, device="meta")] * self._num_ranks
        self._shapes = [part.shape for part in weight.part(shares)]
        self._names = _names(weight)
        self._chosen = [i for i, name in enumerate(self._names) if name in chosen]
        self.a, self.b = nn.ParameterList(), nn.ParameterList()
        for i in self._chosen:
            num_outputs, num_inputs = self._shapes[i]
            self.a.append(initial_a(self._names[i], spec.rank, num_inputs, seed=seed).to(parameter))
            self.b.append(torch.zeros(num_outputs, spec.rank).to(parameter))
        for trained in self.parameters():
            trained.sequence_parallel = True  # type: ignore[attr-defined]  # megatron's mark: add up over tensor ranks

    def by_name(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters by the names that they have beside a Hugging Face model."""
        for i, a, b in zip(self._chosen, self.a, self.b, strict=True):
            yield f"{self._names[i]}.lora_A", a
            yield f"{self._names[i]}.lora_B", b

    def add(self, layer: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        """A linear layer's output and bias, with this added; a hook."""
        if not self.is_enabled:
            return output
        a, b = self._share()
        inner = F.linear(_normed(layer, inputs[0]), a)
        if self._num_ranks > 1:  # sequence parallel: a few numbers a token are exchanged
            inner = (
                reduce_scatter_to_sequence_parallel_region(inner)
                if self._takes_columns
                else gather_from_sequence_parallel_region(inner, tensor_parallel_output_grad=True)
            )
        return output[0] + self._scale * F.linear(inner, b), output[1]

    def merged(self, weight: Tensor) -> Tensor:
        """This rank's share of the weight with the product added."""
        a, b = self._share()
        return (weight.float() + self._scale * b.float() @ a.float()).to(weight.dtype)

    def _share(self) -> tuple[Tensor, Tensor]:
        """A and B whose product has the shape of this rank's share of the weight.

        Of several adapters the A stand one over the other, and each B in the columns of its A.
        """
        if self._takes_columns:
            return self._weight.join([self.a[0]], self._rank, self._num_ranks), self.b[0]
        a = torch.cat(list(self.a))
        columns = len(a) // len(self._chosen)
        parts = [a.new_zeros(shape[0], len(a)) for shape in self._shapes]
        for place, (i, b) in enumerate(zip(self._chosen, self.b, strict=True)):
            before = place * columns
            parts[i] = F.pad(b, (before, len(a) - before - columns))
        return a, self._weight.join(parts, self._rank, self._num_ranks)


def _as_differentiable(_module: nn.Module, _inputs: Any, hidden_states: Tensor) -> Tensor:
    """Layers that are recomputed have a backward pass only if their input has one."""
    return hidden_states.requires_grad_()


def _normed(layer: Any, inputs: Tensor) -> Tensor:
    """What a layer multiplies its matrix with: Transformer Engine's take a norm's input, and norm it themselves."""
    if (weight := getattr(layer, "layer_norm_weight", None)) is None:
        return inputs
    weight = weight.float() + (1.0 if layer.zero_centered_gamma else 0.0)
    return F.rms_norm(inputs.float(), weight.shape, weight, layer.eps).type_as(inputs)


def _linear_layers(chunk: nn.Module, transfer: WeightTransfer) -> Iterator[tuple[Any, Weight]]:
    """The linear layers of a chunk but the head and those of experts, with where their weights come from."""
    for layer in chunk.modules():
        parameter = getattr(layer, "weight", None)
        if parameter is None or parameter.ndim != 2:
            continue
        name, weight = transfer.origin(parameter)
        if ".experts." not in name and not isinstance(weight, Whole | Vocabulary):
            yield layer, weight


def _names_on_all_ranks(linears: Sequence[dict[Any, Weight]]) -> list[str]:
    own = [name for layers in linears for weight in layers.values() for name in _names(weight)]
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return sorted({name for names in everyone for name in names})


def _names(weight: Weight) -> list[str]:
    """Of the Hugging Face layers that a weight is made of."""
    return [name.removesuffix(".weight") for name in weight.names]
