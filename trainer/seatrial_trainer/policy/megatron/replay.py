"""Router replay (R3, arXiv 2510.11370): tokens go to the experts that the engine sent them to.

Engine and trainer compute the same router scores up to rounding, and where two experts score alike the rounding
decides. With the engine's choices replayed only the weights of the experts are computed anew, so gradients reach the
router as before.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor, nn

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.batch import TrainingSequence
from seatrial_trainer.policy.megatron.context import ContextShare
from seatrial_trainer.policy.megatron.mesh import Mesh
from seatrial_trainer.policy.megatron.microbatches import Microbatch
from seatrial_trainer.policy.routing import UNKNOWN

TopK = Callable[..., tuple[Tensor, Tensor]]


class RouterReplay:
    """The choices of all routers of this rank, micro-batch by micro-batch."""

    def __init__(self, chunks: Iterable[nn.Module], mesh: Mesh, *, recomputes: bool) -> None:
        """Take hold of the routers.

        Args:
            chunks: This rank's layers; none where routers choose for themselves.
            mesh: The ranks that share a pack's tokens.
            recomputes: Whether layers run again in the backward pass.
        """
        self._mesh = mesh
        self._routed: dict[int, np.ndarray] = {}
        """By the identity of a sequence's token ids, since scoring is told of nothing else."""
        self._routers: list[_Router] = []
        for chunk in chunks:
            for module in chunk.modules():
                if isinstance(module, TopKRouter):
                    module.router_replay = _Router(module.layer_number - 1, recomputes=recomputes)
                    self._routers.append(module.router_replay)

    @contextmanager
    def of(self, sequences: Sequence[TrainingSequence]) -> Iterator[None]:
        """Replay these sequences' choices for the length of a block, the reference's passes over them included.

        Raises:
            InvalidInputError: nothing is known of a sequence.
        """
        self._routed = {id(one.token_ids): _known(one) for one in sequences} if self._routers else {}
        try:
            yield
        finally:
            self._routed = {}

    def begin(self) -> None:
        """Begin the passes of a batch; those of the last one may have had no backward pass."""
        for router in self._routers:
            router.clear()

    def turn(self, batch: Microbatch, sequences: Sequence[list[int]]) -> None:
        """Have the coming forward pass, and its repetition, choose as the engine did where that is known.

        Args:
            batch: The micro-batch.
            sequences: Token ids of all sequences of the batch, as the training sequences hold them.
        """
        rows = self._rows(batch, sequences) if self._routed and batch.pack.members else None
        for router in self._routers:
            router.choose(None if rows is None else rows[:, router.layer])

    def _rows(self, batch: Microbatch, sequences: Sequence[list[int]]) -> Tensor:
        """The choices for this rank's tokens, in their order; padding at the pack's end has none."""
        members = [self._routed[id(sequences[member.sequence])] for member in batch.pack.members]
        row = np.full((batch.pack.num_positions, *members[0].shape[1:]), UNKNOWN, dtype=np.int64)
        bounds = batch.sequences.cu_seqlens_q.tolist()
        for start, stop, choices in zip(bounds, bounds[1:], members, strict=False):
            row[start:stop] = choices[: stop - start]
        sizes = self._mesh.sizes
        own = row[ContextShare(self._mesh.context_rank, sizes.context, len(row)).places]
        return torch.from_numpy(np.split(own, sizes.tensor)[self._mesh.tensor_rank]).to(batch.input_ids.device)


def _known(sequence: TrainingSequence) -> np.ndarray:
    if sequence.routed_experts is None:
        num = len(sequence.token_ids)
        msg = f"trainer.routerReplay: no engine said which experts a sequence of {num} tokens went to; set it to false"
        raise InvalidInputError(msg)
    return sequence.routed_experts


class _Router:
    """One layer's choices, in the place of megatron-core's own replay, which knows all tokens' or none's."""

    def __init__(self, layer: int, *, recomputes: bool) -> None:
        self.layer = layer
        """Counted over the whole model."""
        self._recomputes = recomputes
        self._choices: Tensor | None = None
        self._again: deque[Tensor | None] = deque()
        """Of micro-batches that went forward and not yet backward, in both cases in this order."""

    def choose(self, choices: Tensor | None) -> None:
        """Choose so in the coming forward pass; unknown choices are the router's own."""
        self._choices = choices

    def clear(self) -> None:
        """Forget all choices."""
        self._choices = None
        self._again.clear()

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, default_compute_topk: TopK
    ) -> tuple[Tensor, Tensor]:
        """Scores and experts of each token, as megatron-core asks for them."""
        values, experts = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        choices = self._current()
        if choices is None:
            return values, experts
        experts = torch.where(choices == UNKNOWN, experts, choices)
        return scores.gather(1, experts), experts

    def _current(self) -> Tensor | None:
        if not self._recomputes:
            return self._choices
        if torch.is_grad_enabled():  # the repetition; the first pass through a layer keeps no graph
            return self._again.popleft()
        self._again.append(self._choices)
        return self._choices
