"""Weights between a Hugging Face model directory and the ranks, one at a time."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.megatron.families.family import WeightOf
from seatrial_trainer.policy.megatron.families.weights import Weight
from seatrial_trainer.policy.megatron.mesh import Mesh
from seatrial_trainer.policy.model_files import ModelFiles

_LAYER = re.compile(r"(?<=decoder\.layers\.)\d+")
_EXPERT = re.compile(r"(?<=local_experts\.)\d+")

type Share = tuple[str, int]
"""A weight's name over the whole model, and the tensor rank that holds this part of it."""


class WeightTransfer:
    """Which weights this rank holds, and which rank holds the others.

    Each weight is the same on every replica; the first gives it. Rank 0 receives the parts of a weight from those that
    hold them, so that no rank ever holds more of the model than its share and one weight.
    """

    def __init__(self, chunks: Sequence[nn.Module], weight_of: WeightOf, mesh: Mesh, config: TransformerConfig) -> None:
        num_layers = config.num_layers // mesh.num_chunks
        num_experts = (config.num_moe_experts or 0) // mesh.sizes.expert
        self._weight_of = weight_of
        self._mesh = mesh
        self._own: dict[Share, nn.Parameter] = {}
        for number, chunk in zip(mesh.chunks, chunks, strict=True):
            for name, parameter in chunk.named_parameters():
                whole_name = _counted_from(number * num_layers, _LAYER, name)
                whole_name = _counted_from(mesh.expert_rank * num_experts, _EXPERT, whole_name)
                self._own[whole_name, self._tensor_rank(whole_name)] = parameter
        self._names = {parameter: name for (name, _), parameter in self._own.items()}
        self._shared_embedding = getattr(chunks[0], "share_embeddings_and_output_weights", False)
        self._holders = self._find_holders()

    def origin(self, parameter: nn.Parameter) -> tuple[str, Weight]:
        """Name over the whole model of one of this rank's weights, and where it comes from."""
        name = self._names[parameter]
        return name, self._weight_of(self._stored_name(name))

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Fill this rank's weights.

        Raises:
            InvalidInputError: the directory lacks one, or one has another shape.
        """
        with ModelFiles(directory) as files:
            for (name, rank), parameter in self._own.items():
                weight = self._weight_of(self._stored_name(name))
                parts = [files.read(part, weight.expert) for part in weight.names]
                joined = weight.join(parts, rank, self._num_tensor_ranks(name))
                if joined.shape != parameter.shape:
                    found, wanted = tuple(joined.shape), tuple(parameter.shape)
                    msg = f"model {directory}: {', '.join(weight.names)} make a weight of {found}, not {wanted}"
                    raise InvalidInputError(msg)
                parameter.copy_(joined)

    @torch.no_grad()
    def export(
        self, dtype: torch.dtype, finished: Callable[[nn.Parameter], Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Whole weights under their Hugging Face names, on rank 0; a collective that gives other ranks nothing.

        Args:
            dtype: Number format to give them in.
            finished: What a rank gives in the place of its share of a weight.
        """
        members: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name in self._holders:
            members[self._weight_of(name).names].append(name)
        for names, parts in members.items():
            whole = self._collect(parts, dtype, finished or (lambda parameter: parameter))
            if dist.get_rank() == 0:
                yield from zip(names, whole, strict=True)

    def _collect(
        self, names: list[str], dtype: torch.dtype, finished: Callable[[nn.Parameter], Tensor]
    ) -> list[Tensor]:
        """The Hugging Face weights that some of megatron-core's make up: one, or all experts of a layer."""
        whole: list[Tensor] = []
        for name in names:
            weight, shares = self._weight_of(name), self._gather(name, dtype, finished)
            parts = weight.part(shares) if shares else []
            if weight.expert is None:
                return parts
            whole = whole or [part.new_empty((len(names), *part.shape)) for part in parts]
            for together, part in zip(whole, parts, strict=True):
                together[weight.expert] = part
        return whole

    def _gather(self, name: str, dtype: torch.dtype, finished: Callable[[nn.Parameter], Tensor]) -> list[Tensor]:
        """A weight's parts by tensor rank, on rank 0; nothing on others."""
        shares, rank = [], dist.get_rank()
        for part, (holder, shape) in enumerate(self._holders[name]):
            own = finished(self._own[name, part]).to(dtype).contiguous() if holder == rank else None
            if rank == 0:
                shares.append(own if own is not None else _receive(shape, dtype, holder))
            elif own is not None:
                dist.send(own, dst=0)
        return shares

    def _find_holders(self) -> dict[str, list[tuple[int, torch.Size]]]:
        """By weight: rank and shape of each tensor rank's part, in their order, the same on every rank."""
        own = {share: parameter.shape for share, parameter in self._own.items() if self._is_first(share[0])}
        everyone: list[dict[Share, torch.Size]] = [{}] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        holders: dict[Share, tuple[int, torch.Size]] = {}
        for rank, shares in enumerate(everyone):
            for share, shape in shares.items():
                holders.setdefault(share, (rank, shape))
        names = {name: None for name, _ in holders if not self._is_copy(name)}
        return {name: [holders[name, part] for part in range(self._num_tensor_ranks(name))] for name in names}

    def _is_first(self, name: str) -> bool:
        """Whether this rank is the first of those that hold the same part of a weight."""
        return (self._mesh.expert_data_rank if ".experts." in name else self._mesh.data_rank) == 0

    def _is_copy(self, name: str) -> bool:
        """Whether it is the last stage's copy of the embedding."""
        return self._shared_embedding and name == "output_layer.weight"

    def _stored_name(self, name: str) -> str:
        return "embedding.word_embeddings.weight" if self._is_copy(name) else name

    def _tensor_rank(self, name: str) -> int:
        return self._mesh.expert_tensor_rank if ".experts." in name else self._mesh.tensor_rank

    def _num_tensor_ranks(self, name: str) -> int:
        sizes = self._mesh.sizes
        return sizes.expert_tensor if ".experts." in name else sizes.tensor


def _counted_from(first: int, numbers: re.Pattern[str], name: str) -> str:
    return numbers.sub(lambda found: str(int(found[0]) + first), name)


def _receive(shape: torch.Size, dtype: torch.dtype, source: int) -> Tensor:
    share = torch.empty(shape, dtype=dtype, device=torch.cuda.current_device())
    dist.recv(share, src=source)
    return share
