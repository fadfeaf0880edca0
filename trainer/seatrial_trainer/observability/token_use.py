"""Tokens of trials by price tier, and what kept engines from finding in their cache what they had read before."""

from collections import Counter
from collections.abc import Iterable, Iterator

from seatrial_api.stage_report import ReadAgain, TokenUse
from seatrial_api.trajectory import Trajectory, Turn


class TokenCounts:
    """Counts the tokens of trials, by harness."""

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self._by_harness: dict[str, TokenUse] = {}
        for trajectory in trajectories:
            self.add(trajectory)

    def add(self, trajectory: Trajectory) -> None:
        """Count a trial, however it ended: its tokens are paid for."""
        if trajectory.turns:
            before = self._by_harness.get(trajectory.harness, TokenUse(harness=trajectory.harness))
            self._by_harness[trajectory.harness] = before + tokens_of(trajectory)

    def clear(self) -> None:
        """Begin anew."""
        self._by_harness.clear()

    def by_harness(self) -> list[TokenUse]:
        """What was counted, by the harness's name."""
        return [use for _, use in sorted(self._by_harness.items())]

    @property
    def hit_rate(self) -> float | None:
        """Share of all prompt tokens that came from a prefix cache; none before there are any."""
        total = sum(self._by_harness.values(), TokenUse(harness=""))
        return total.hit_rate


def tokens_of(trajectory: Trajectory) -> TokenUse:
    """What one trial's engine calls read and sampled."""
    prompt = sum(turn.start for turn in trajectory.turns)
    cached = sum(turn.cached_tokens for turn in trajectory.turns)
    return TokenUse(
        harness=trajectory.harness,
        trials=1,
        cached_prompt_tokens=cached,
        prompt_tokens=prompt - cached,
        completion_tokens=sum(turn.stop - turn.start for turn in trajectory.turns),
        read_again=_read_again(trajectory),
    )


def _read_again(trajectory: Trajectory) -> dict[ReadAgain, int]:
    """Prompt tokens that engines computed once more, by why."""
    counts: Counter[ReadAgain] = Counter()
    for turn, before, num_known in _with_what_was_known(trajectory):
        again = num_known - turn.cached_tokens
        if again <= 0:
            continue
        if before is None:
            counts[ReadAgain.AFRESH] += again
        elif _version(trajectory, turn, turn.start) != _version(trajectory, before, before.stop - 1):
            counts[ReadAgain.NEW_WEIGHTS] += again
        else:
            counts[ReadAgain.LOST] += again
    return dict(counts)


def _with_what_was_known(trajectory: Trajectory) -> Iterator[tuple[Turn, Turn | None, int]]:
    """Each turn but the first, the one that it goes on from, and how many of its prompt tokens could have been cached.

    Of a conversation that goes on, all that came before: the last sampled token excepted, which no engine has read.
    A conversation that begins afresh could have been one that goes on, so that all of it counts.
    """
    inherited = {span.sequence: span.start for span in reversed(trajectory.given)}
    last: dict[int, Turn] = {}
    for turn, before in zip(trajectory.turns[1:], trajectory.turns, strict=False):
        last[before.sequence] = before
        if turn.sequence in last:
            yield turn, last[turn.sequence], last[turn.sequence].stop - 1
        else:
            branches = bool(inherited.get(turn.sequence))
            yield (turn, before, inherited[turn.sequence]) if branches else (turn, None, turn.start)


def _version(trajectory: Trajectory, turn: Turn, position: int) -> int:
    return trajectory.sequences[turn.sequence].weight_versions[position]
