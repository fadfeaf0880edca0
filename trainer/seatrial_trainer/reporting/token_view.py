"""Trajectories token by token: who wrote each, how likely it was, and how far engine and trainer disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tokenizers import Tokenizer

from seatrial_api.trajectory import Trajectory

_MAX_TOKENS = 4_000
_FULL_COLOUR_NATS = 0.3
"""A difference of so many nats gets the full colour; runs are guarded well below."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One sampled token, or consecutive given ones."""

    text: str
    is_sampled: bool
    title: str
    """What a person reads when pointing at it."""
    heat: float = 0.0
    """Absolute logprob difference, scaled to 0 to 1."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One token sequence."""

    spans: tuple[TokenSpan, ...]
    num_tokens: int
    num_sampled: int
    num_left_out: int
    """Tokens in the middle that are not shown."""
    mean_difference: float | None
    """Mean absolute logprob difference over sampled tokens; none where the trainer did not look."""


def view_sequences(
    trajectory: Trajectory, tokenizer: Tokenizer, trained: Mapping[str, Sequence[Sequence[float]]]
) -> list[SequenceView]:
    """Every sequence of a trajectory.

    Args:
        trajectory: The trajectory.
        tokenizer: Of the policy.
        trained: The trainer's logprobs by trial, sequence and token, for trials that were compared.
    """
    compared = trained.get(trajectory.trial_id, [None] * len(trajectory.sequences))
    views = []
    for sequence, logprobs in zip(trajectory.sequences, compared, strict=True):
        tokens = [
            _Token(token, bool(mask), logprob, version, None if logprobs is None else logprobs[position])
            for position, (token, mask, logprob, version) in enumerate(
                zip(sequence.token_ids, sequence.loss_mask, sequence.logprobs, sequence.weight_versions, strict=True)
            )
        ]
        head, tail = tokens[: _MAX_TOKENS // 2], tokens[max(_MAX_TOKENS // 2, len(tokens) - _MAX_TOKENS // 2) :]
        spans = [*_spans(head, tokenizer), *_spans(tail, tokenizer)]
        differences = [token.difference for token in tokens if token.is_sampled and token.difference is not None]
        views.append(
            SequenceView(
                spans=tuple(spans),
                num_tokens=len(tokens),
                num_sampled=sequence.num_sampled,
                num_left_out=len(tokens) - len(head) - len(tail),
                mean_difference=sum(differences) / len(differences) if differences else None,
            )
        )
    return views


@dataclass(frozen=True, slots=True)
class _Token:
    token_id: int
    is_sampled: bool
    logprob: float
    version: int
    trained_logprob: float | None

    @property
    def difference(self) -> float | None:
        return None if self.trained_logprob is None else abs(self.logprob - self.trained_logprob)


def _spans(tokens: Sequence[_Token], tokenizer: Tokenizer) -> list[TokenSpan]:
    spans = []
    for is_sampled, run in groupby(tokens, key=lambda token: token.is_sampled):
        members = list(run)
        if is_sampled:
            spans += [_sampled_span(token, tokenizer) for token in members]
        else:
            text = tokenizer.decode([token.token_id for token in members], skip_special_tokens=False)
            spans.append(TokenSpan(text, is_sampled=False, title=f"{len(members)} tokens given, not trained"))
    return spans


def _sampled_span(token: _Token, tokenizer: Tokenizer) -> TokenSpan:
    title = f"token {token.token_id} · weights of version {token.version} · engine {token.logprob:.4f}"
    difference = token.difference
    if difference is not None:
        title += f" · trainer {token.trained_logprob:.4f} · difference {difference:.2e}"
    return TokenSpan(
        text=tokenizer.decode([token.token_id], skip_special_tokens=False),
        is_sampled=True,
        title=title,
        heat=min(1.0, (difference or 0.0) / _FULL_COLOUR_NATS),
    )
