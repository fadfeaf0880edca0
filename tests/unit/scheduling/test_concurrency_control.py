import random
from heapq import heappop, heappush

import pytest

from seatrial_trainer.scheduling.concurrency import Aimd, Ceilings, EngineLoad, LengthEstimate


def load(kv_usage: float, num_preemptions: int = 0) -> EngineLoad:
    return EngineLoad(kv_usage, num_preemptions, kv_capacity_tokens=100_000)


@pytest.mark.parametrize(
    ("ceilings", "lowest"),
    [
        (Ceilings(1024), 1024),
        (Ceilings(1024, systems=300), 300),
        (Ceilings(64, systems=300, places=16), 16),
        (Ceilings(64, systems=0), 1),
    ],
)
def test_the_lowest_known_ceiling_binds_and_leaves_at_least_one_trial(ceilings: Ceilings, lowest: int) -> None:
    assert ceilings.lowest == lowest


def test_concurrency_grows_by_a_quarter_until_the_first_trim_and_by_a_step_after_it() -> None:
    controller = Aimd(limit=100)

    grown = controller.follow(load(0.3), num_in_flight=100, ceiling=320)
    assert grown.limit == 125

    trimmed = grown.follow(load(0.9), num_in_flight=125, ceiling=320)
    assert trimmed.limit == 100

    assert trimmed.follow(load(0.3), num_in_flight=100, ceiling=320).limit == 110


def test_concurrency_never_grows_past_its_ceiling_nor_shrinks_below_one() -> None:
    assert Aimd(limit=100).follow(load(0.1), num_in_flight=100, ceiling=110).limit == 110
    assert Aimd(limit=1).follow(load(0.95), num_in_flight=1, ceiling=110).limit == 1


def test_a_limit_that_does_not_bind_is_not_raised() -> None:
    assert Aimd(limit=100).follow(load(0.3), num_in_flight=60, ceiling=1000).limit == 100


def test_a_cut_is_not_repeated_before_trials_in_flight_have_come_down_to_it() -> None:
    assert Aimd(limit=80).follow(load(0.95), num_in_flight=100, ceiling=1000).limit == 80
    assert Aimd(limit=80).follow(load(0.95), num_in_flight=80, ceiling=1000).limit == 64


def test_usage_between_the_bounds_changes_nothing() -> None:
    assert Aimd(limit=80).follow(load(0.7), num_in_flight=80, ceiling=1000).limit == 80


def test_a_preemption_trims_whatever_the_usage_and_counts_once() -> None:
    trimmed = Aimd(limit=100).follow(load(0.5, num_preemptions=3), num_in_flight=100, ceiling=1000)
    assert trimmed.limit == 80

    assert trimmed.follow(load(0.7, num_preemptions=3), num_in_flight=80, ceiling=1000).limit == 80


def replay(lengths: list[float], places: int, stop_at: float) -> tuple[float | None, list[float]]:
    """Run trials of the given seconds in `places` places until `stop_at`: the estimate, and the lengths that ended."""
    estimate = LengthEstimate(forgetting=1.0)
    ends: list[tuple[float, float]] = []
    waiting = iter(lengths)
    now = 0.0
    completed = []
    for _ in range(places):
        seconds = next(waiting)
        heappush(ends, (seconds, seconds))
        estimate = estimate.started(0.0)
    while ends[0][0] <= stop_at:
        now, seconds = heappop(ends)
        estimate = estimate.completed(now, seconds, tokens=int(seconds * 10))
        completed.append(seconds)
        fresh = next(waiting)
        heappush(ends, (now + fresh, fresh))
        estimate = estimate.started(now)
    return estimate.mean_tokens(stop_at), completed


def test_the_length_estimate_is_free_of_the_bias_towards_trials_that_end_early() -> None:
    rng = random.Random(5)  # noqa: S311  reproducible
    lengths = [rng.lognormvariate(4.0, 1.2) for _ in range(100_000)]
    true_mean = 10 * sum(lengths) / len(lengths)

    estimate, completed = replay(lengths, places=500, stop_at=60.0)

    naive = 10 * sum(completed) / len(completed)
    assert naive < 0.3 * true_mean
    assert estimate == pytest.approx(true_mean, rel=0.3)


def test_the_length_estimate_is_right_for_heavy_tails_in_a_steady_state() -> None:
    rng = random.Random(6)  # noqa: S311  reproducible
    lengths = [rng.lognormvariate(4.0, 1.2) for _ in range(100_000)]
    true_mean = 10 * sum(lengths) / len(lengths)

    estimate, _ = replay(lengths, places=100, stop_at=10_000.0)

    assert estimate == pytest.approx(true_mean, rel=0.05)


def test_trials_that_infrastructure_ended_count_as_exposure_only() -> None:
    estimate = LengthEstimate(forgetting=1.0).started(0.0).started(0.0)
    estimate = estimate.completed(10.0, seconds=10.0, tokens=100)

    assert estimate.ended(30.0).mean_tokens(30.0) == pytest.approx((10 + 30) / 1 * 10)


def test_length_is_unknown_before_the_first_completion() -> None:
    assert LengthEstimate().started(0.0).ended(5.0).mean_tokens(5.0) is None


def test_the_length_estimate_follows_a_drift() -> None:
    estimate = LengthEstimate(forgetting=0.99)
    now = 0.0
    for seconds in [10.0] * 1_000 + [40.0] * 1_000:
        estimate = estimate.started(now)
        now += seconds
        estimate = estimate.completed(now, seconds, tokens=int(seconds))

    assert estimate.mean_tokens(now) == pytest.approx(40.0, rel=0.01)
