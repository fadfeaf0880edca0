"""Tokens by price tier, and why an engine had to read some of them again."""

from seatrial_api.outcome import Outcome
from seatrial_api.spec.operations import CostSpec
from seatrial_api.stage_report import ReadAgain, StageReport, StageResult, TokenUse
from seatrial_api.trajectory import GivenSpan, TokenSequence, Trajectory, Turn
from seatrial_trainer.observability.token_use import TokenCounts, tokens_of
from seatrial_trainer.reporting.token_costs import token_lines
from tests.trajectories import make_trajectory

GIVEN, SAMPLED = 100, 10
"""Tokens before each turn, and of it."""


def turn(number: int, sequence: int = 0, *, after: int = 0, cached: int) -> Turn:
    """The turn of this number in its sequence, which inherits `after` tokens."""
    start = after + number * (GIVEN + SAMPLED) + GIVEN
    return Turn(
        sequence=sequence, start=start, stop=start + SAMPLED, finish_reason="stop", text="", cached_tokens=cached
    )


def trajectory(*turns: Turn, versions: list[int] | None = None, inherited: int = 0) -> Trajectory:
    """A trial with these turns; all that matters of its sequences are versions, one a turn."""
    numbers = versions or [0] * len(turns)
    sequences = []
    for index in sorted({one.sequence for one in turns}):
        length = max(one.stop for one in turns if one.sequence == index)
        told = [-1] * length
        for one, version in zip(turns, numbers, strict=True):
            if one.sequence == index:
                told[one.start : one.stop] = [version] * SAMPLED
        empty = [0] * length
        mask = [int(version >= 0) for version in told]
        sequences.append(TokenSequence(token_ids=empty, loss_mask=mask, logprobs=[0.0] * length, weight_versions=told))
    given = [GivenSpan(sequence=1, start=inherited, stop=inherited + GIVEN, messages="[]")]
    update = {"turns": list(turns), "sequences": sequences, "given": given if len(sequences) > 1 else []}
    return make_trajectory().model_copy(update=update)


def test_each_turn_pays_for_its_prompt_and_what_it_sampled() -> None:
    use = tokens_of(trajectory(turn(0, cached=0), turn(1, cached=109)))
    assert (use.cached_prompt_tokens, use.prompt_tokens, use.completion_tokens) == (109, 100 + 101, 20)
    assert use.read_again == {}
    assert use.hit_rate == 109 / 310


def test_what_came_before_is_read_again_because_of_new_weights_or_because_the_cache_lost_it() -> None:
    turns = turn(0, cached=0), turn(1, cached=0), turn(2, cached=200)
    assert tokens_of(trajectory(*turns, versions=[3, 4, 4])).read_again == {
        ReadAgain.NEW_WEIGHTS: 109,
        ReadAgain.LOST: 219 - 200,
    }


def test_a_branch_can_take_what_it_inherits_from_the_cache() -> None:
    kept = trajectory(turn(0, cached=0), turn(0, 1, after=110, cached=110), inherited=110)
    assert tokens_of(kept).read_again == {}
    lost = trajectory(turn(0, cached=0), turn(0, 1, after=110, cached=64), inherited=110)
    assert tokens_of(lost).read_again == {ReadAgain.LOST: 46}


def test_a_conversation_that_begins_afresh_is_read_from_its_start() -> None:
    use = tokens_of(trajectory(turn(0, cached=0), turn(0, 1, cached=30), turn(1, 1, cached=109)))
    assert use.read_again == {ReadAgain.AFRESH: 70}


def test_tokens_are_counted_by_harness_whatever_the_outcome() -> None:
    one = trajectory(turn(0, cached=40))
    failed = one.model_copy(update={"harness": "codex", "outcome": Outcome.ENGINE_FAILED, "reward": None})
    counts = TokenCounts([one, failed, one, make_trajectory().model_copy(update={"turns": []})])
    assert [(use.harness, use.trials, use.cached_prompt_tokens) for use in counts.by_harness()] == [
        ("archipelago", 2, 80),
        ("codex", 1, 40),
    ]
    assert counts.hit_rate == 0.4
    counts.clear()
    assert (counts.by_harness(), counts.hit_rate) == ([], None)


def test_a_line_for_each_stage_and_harness_prices_every_tier() -> None:
    used = TokenUse(
        harness="codex",
        trials=1,
        cached_prompt_tokens=3_000_000,
        prompt_tokens=1_000_000,
        completion_tokens=500_000,
        read_again={ReadAgain.LOST: 10_000, ReadAgain.NEW_WEIGHTS: 200_000},
    )
    reports = [
        StageReport(stage=name, kind="Evaluate", result=StageResult.PASSED, tokens=[used])
        for name in ("before", "after")
    ]
    prices = CostSpec(cached_prompt_million_tokens=0.1, prompt_million_tokens=1.0, completion_million_tokens=4.0)
    first, _, total = token_lines(reports, prices)
    assert (first.stage, first.hit_rate, first.read_again) == ("before", "75.0%", "NewWeights 20%, Lost 1%")
    assert round(first.cached_dollars, 6) == 0.3
    assert (first.prompt_dollars, first.completion_dollars) == (1.0, 2.0)
    assert (total.stage, total.use.prompt_tokens, total.completion_dollars) == ("all", 2_000_000, 4.0)
    assert token_lines([], prices) == []
