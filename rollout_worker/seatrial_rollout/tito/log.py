"""The append-only record of every token that a trial's engine read or made."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from seatrial_api.trajectory import RoutedExperts, TokenSequence
from seatrial_rollout.engine.generation import Generation

GIVEN_VERSION = -1
"""Weight version of a token that the policy did not sample."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens in one sequence."""

    sequence: int
    start: int
    stop: int


@dataclass(slots=True)
class _Columns:
    """One sequence while it grows; the four lists run in parallel."""

    parent: int | None = None
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    num_routed: int = 0
    routed_experts: list[RoutedExperts] = field(default_factory=list)


class TokenLog:
    """Token sequences that only ever grow at their end.

    A token enters either as given (mask 0) or as sampled (mask 1), once, and is never changed. Whoever names no
    sequence means the newest one.
    """

    def __init__(self) -> None:
        self._sequences: list[_Columns] = []

    @property
    def num_tokens(self) -> int:
        """Tokens in the newest sequence."""
        return self.length() if self._sequences else 0

    @property
    def token_ids(self) -> list[int]:
        """A copy of the newest sequence's token ids."""
        return self.tokens()

    def length(self, sequence: int = -1) -> int:
        """Tokens in a sequence."""
        return len(self._sequences[sequence].token_ids)

    def num_routed(self, sequence: int = -1) -> int:
        """Tokens at a sequence's beginning whose experts are known."""
        return self._sequences[sequence].num_routed

    def tokens(self, sequence: int = -1, stop: int | None = None) -> list[int]:
        """A copy of a sequence's token ids, up to `stop`."""
        return self._sequences[sequence].token_ids[:stop]

    def start(self, token_ids: Sequence[int], *, inherited: int = 0, parent: int = -1) -> Span:
        """Open a sequence with its first `inherited` tokens taken from its parent, then `token_ids`.

        The first sequence of all has no parent.

        Returns:
            The span of `token_ids`.
        """
        number = len(self._sequences)
        prefix = self.tokens(parent, inherited) if number else []
        self._sequences.append(_Columns(parent % number if number else None))
        self.give(prefix)
        return self.give(token_ids)

    def give(self, token_ids: Sequence[int], *, sequence: int = -1) -> Span:
        """Append tokens that the policy did not sample."""
        num = len(token_ids)
        return self._append(sequence, token_ids, [0] * num, [0.0] * num, [GIVEN_VERSION] * num)

    def sample(self, generation: Generation, *, sequence: int = -1, routed_from: int = 0) -> Span:
        """Append what the engine sampled, and the experts of the tokens from `routed_from` on if it said them.

        Raises:
            ValueError: The generation's lists differ in length.
        """
        num = len(generation.token_ids)
        if not num == len(generation.logprobs) == len(generation.weight_versions):
            raise ValueError(
                f"an engine returned {num} tokens, {len(generation.logprobs)} log-probabilities and "
                f"{len(generation.weight_versions)} weight versions"
            )
        versions = generation.weight_versions
        span = self._append(sequence, generation.token_ids, [1] * num, generation.logprobs, versions)
        if generation.routed_experts:
            columns = self._sequences[sequence]
            columns.routed_experts.append(RoutedExperts(start=routed_from, data=generation.routed_experts))
            columns.num_routed = span.stop - 1  # the last token has not been read yet
        return span

    def sequences(self) -> list[TokenSequence]:
        """The sequences so far, in the order in which they were opened."""
        return [
            TokenSequence(
                token_ids=columns.token_ids,
                loss_mask=columns.loss_mask,
                logprobs=columns.logprobs,
                weight_versions=columns.weight_versions,
                parent=columns.parent,
                routed_experts=columns.routed_experts,
            )
            for columns in self._sequences
        ]

    def _append(
        self,
        sequence: int,
        token_ids: Sequence[int],
        mask: list[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
    ) -> Span:
        columns = self._sequences[sequence]
        start = len(columns.token_ids)
        columns.token_ids.extend(token_ids)
        columns.loss_mask.extend(mask)
        columns.logprobs.extend(logprobs)
        columns.weight_versions.extend(versions)
        return Span(sequence % len(self._sequences), start, len(columns.token_ids))
