"""The invariants of asynchronous control, over the real classes in virtual time."""

import dataclasses
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial_api.base import Auto
from seatrial_api.errors import WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.concurrency import trajectory_tokens
from seatrial_trainer.scheduling.groups import GroupResult
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulated_engines import Death, EngineModel
from seatrial_trainer.scheduling.simulated_trials import TOKENS_PER_SIMULATED_TOKEN, Faults, Storm
from seatrial_trainer.scheduling.simulator import SimulatedStorage, SimulationResult, SimulationSpec, simulate
from seatrial_trainer.scheduling.workload import Workload

simulations = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stage(
    *, batch_size: int = 4, group_size: int = 4, max_staleness: int = 3, num_steps: int = 8, incarnation: int = 0
) -> SchedulerSettings:
    rules = AssemblyRules(group_size, min_valid=max(1, group_size // 2))
    return SchedulerSettings("train", rules, batch_size, max_staleness, num_steps, incarnation)


stages = st.builds(
    stage,
    batch_size=st.integers(1, 5),
    group_size=st.integers(1, 5),
    max_staleness=st.integers(0, 4),
    num_steps=st.integers(1, 8),
)
concurrencies = st.one_of(st.just("Auto"), st.integers(1, 60))
storms = st.builds(
    Storm,
    at=st.floats(0, 5_000),
    seconds=st.floats(1, 120),
    share=st.floats(0.1, 1),
    outcome=st.sampled_from([Outcome.SANDBOX_FAILED, Outcome.JUDGE_FAILED, Outcome.DEADLINE_EXCEEDED]),
)
fault_lists = st.builds(
    Faults,
    storms=st.lists(storms, max_size=3).map(tuple),
    failing_share=st.sampled_from([0.0, 0.02, 0.1]),
    hanging_share=st.sampled_from([0.0, 0.01]),
    slow_verifier_share=st.sampled_from([0.0, 0.05]),
    broken_tasks=st.frozensets(st.sampled_from(["task-0001", "task-0007"])),
)
deaths = st.lists(
    st.builds(Death, engine=st.integers(0, 2), at=st.floats(0, 3_000), down_seconds=st.floats(1, 90)), max_size=4
).map(tuple)


def trained(results: Iterable[SimulationResult]) -> list[tuple[str, str]]:
    """Id and task of every trained group."""
    return [(group.group_id, group.task) for result in results for batch in result.batches for group in batch.groups]


def check_every_trial_left_once(result: SimulationResult) -> None:
    assert set(result.trials_started) <= set(result.trials_ended)
    assert set(result.trials_started.values()) <= {1}
    assert set(result.trials_ended.values()) <= {1}


def check_no_group_is_lost_or_doubled(result: SimulationResult, spec: SimulationSpec) -> None:
    assert result.snapshot is not None
    groups = trained([result])
    assert len(set(groups)) == len(groups) == spec.settings.batch_size * spec.settings.num_steps
    lost = sum(number for kind, number in result.snapshot.groups.items() if kind is not GroupResult.TRAINED)
    assert len(result.started) == len(groups) + lost
    assert result.snapshot.groups[GroupResult.TRAINED] == len(groups)
    assert result.snapshot.groups_in_flight == result.snapshot.groups_finished == 0


def check_bounds(result: SimulationResult, spec: SimulationSpec) -> None:
    for batch in result.batches:
        assert len(batch.groups) == spec.settings.batch_size
        for group, staleness in zip(batch.groups, batch.staleness, strict=True):
            assert 0 <= staleness <= spec.settings.max_staleness
            assert spec.settings.rules.min_valid <= len(group.trajectories) <= spec.settings.rules.group_size
            assert not any(one.outcome.is_infrastructure for one in group.trajectories)


@simulations
@given(
    stage_settings=stages, concurrency=concurrencies, faults=fault_lists, engine_deaths=deaths, seed=st.integers(0, 999)
)
def test_whatever_fails_the_run_ends_with_every_group_trained_once_within_its_bound_or_lost_for_a_named_reason(
    stage_settings: SchedulerSettings,
    concurrency: Auto | int,
    faults: Faults,
    engine_deaths: tuple[Death, ...],
    seed: int,
) -> None:
    spec = SimulationSpec(
        dataclasses.replace(stage_settings, max_consecutive_losses=1_000),
        concurrency=concurrency,
        engines=EngineModel(num_engines=3, seats=8, kv_capacity=600, deaths=engine_deaths),
        workload=Workload(seed=seed),
        faults=faults,
    )

    result = simulate(spec)

    check_no_group_is_lost_or_doubled(result, spec)
    check_every_trial_left_once(result)
    check_bounds(result, spec)


@simulations
@given(stage_settings=stages, seed=st.integers(0, 999), concurrency=concurrencies)
def test_without_lost_groups_the_trained_groups_are_exactly_the_started_ones(
    stage_settings: SchedulerSettings, seed: int, concurrency: Auto | int
) -> None:
    spec = SimulationSpec(stage_settings, concurrency=concurrency, workload=Workload(seed=seed))

    result = simulate(spec)

    assert sorted(trained([result])) == sorted(result.started.items())


def test_failure_storms_do_not_make_the_trained_trials_shorter() -> None:
    storm_train = tuple(Storm(at=1_500.0 * number, seconds=300.0, share=0.9) for number in range(40))
    fragile = AssemblyRules(group_size=4, min_valid=3, max_attempts=2, max_refills=0)
    spec = SimulationSpec(
        dataclasses.replace(stage(batch_size=8, num_steps=50), rules=fragile, max_consecutive_losses=1_000),
        num_tasks=400,
        faults=Faults(storms=storm_train, failing_share=0.05),
    )

    result = simulate(spec)

    assert result.snapshot is not None
    assert result.snapshot.groups[GroupResult.REFILLS_SPENT] > 20
    lengths = [
        trajectory_tokens(trajectory)
        for batch in result.batches
        for group in batch.groups
        for trajectory in group.trajectories
    ]
    assert kolmogorov_smirnov_p(lengths, all_lengths(spec)) > 0.05


def test_the_length_test_would_notice_a_scheduler_that_drops_slow_groups() -> None:
    spec = SimulationSpec(stage(), num_tasks=400)
    groups = [[spec.workload.shape(f"task-{number:04d}", slot) for slot in range(4)] for number in range(400)]
    by_duration = sorted(groups, key=lambda shapes: max(shape.seconds(40.0) for shape in shapes))
    kept = [shape.context_tokens // TOKENS_PER_SIMULATED_TOKEN for shapes in by_duration[:320] for shape in shapes]

    assert kolmogorov_smirnov_p(kept, all_lengths(spec)) < 0.01


def all_lengths(spec: SimulationSpec) -> list[int]:
    """Simulated tokens of every trial that the workload has."""
    return [
        spec.workload.shape(f"task-{number:04d}", slot).context_tokens // TOKENS_PER_SIMULATED_TOKEN
        for number in range(spec.num_tasks)
        for slot in range(spec.settings.rules.group_size)
    ]


def kolmogorov_smirnov_p(first: list[int], second: list[int]) -> float:
    """Chance of a distance as large as this one between two samples of one distribution (asymptotic form)."""
    first, second = sorted(first), sorted(second)
    distance = max(
        abs(bisect_right(first, value) / len(first) - bisect_right(second, value) / len(second))
        for value in [*first, *second]
    )
    scale = distance * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    if scale < 0.2:  # the series converges too slowly, and the chance is 1 to ten digits
        return 1.0
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k**2 * scale**2) for k in range(1, 101)))


def test_zero_staleness_is_synchronous_training() -> None:
    spec = SimulationSpec(stage(max_staleness=0))

    result = simulate(spec)

    assert {staleness for batch in result.batches for staleness in batch.staleness} == {0}
    for train_start, train_end in result.train_spans:
        assert not any(start < train_end and end > train_start for start, end in result.trial_spans)
    generating = sum(
        max(spec.workload.shape(group.task, slot).seconds(40.0) for group in batch.groups for slot in range(4))
        for batch in result.batches
    )
    overhead = spec.spool_seconds + spec.manifest_seconds + spec.train_seconds
    assert result.seconds == pytest.approx(generating + overhead * spec.settings.num_steps)


def test_a_run_is_the_same_each_time() -> None:
    spec = SimulationSpec(stage(), concurrency="Auto", faults=Faults(failing_share=0.1))

    first, second = simulate(spec), simulate(spec)

    assert trained([first]) == trained([second])
    assert first.seconds == second.seconds


@settings(simulations, max_examples=12)
@given(crashes=st.lists(st.floats(1, 1_500), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_a_driver_that_is_killed_at_any_time_loses_no_group_and_trains_none_twice(
    crashes: list[float], seed: int
) -> None:
    storage = SimulatedStorage()
    workload = Workload(seed=seed)
    for incarnation, crash_after in enumerate([*crashes, None]):
        spec = SimulationSpec(
            stage(batch_size=3, num_steps=10, incarnation=incarnation), num_tasks=500, workload=workload
        )
        result = simulate(spec, storage, crash_after=crash_after)
        check_every_trial_left_once(result)
        check_bounds(result, spec)

    named = [group_id for ids, _ in storage.manifests for group_id in ids]
    assert len(storage.manifests) == 10
    assert len(named) == len(set(named)) == 30
    assert set(storage.spool) == set(named)
    # What was in flight at a crash was tried again, not skipped: the tasks are those of a run without a crash.
    uninterrupted = simulate(SimulationSpec(stage(batch_size=3, num_steps=10), num_tasks=500, workload=workload))
    expected = Counter(task for _, task in trained([uninterrupted]))
    assert Counter(storage.spool[group_id].task for group_id in named) == expected


def test_auto_concurrency_settles_where_the_kv_cache_is_well_used() -> None:
    spec = SimulationSpec(
        stage(batch_size=8, group_size=8, num_steps=24),
        concurrency="Auto",
        engines=EngineModel(num_engines=2, seats=100, kv_capacity=800),
        expected_tokens=100,
    )

    result = simulate(spec)

    assert result.limits[0] > 8
    assert max(result.limits) < 256
    busy = result.kv_usage[6:20]
    assert 0.45 < sum(busy) / len(busy) < 0.9


def test_a_fixed_concurrency_stays_fixed() -> None:
    result = simulate(SimulationSpec(stage(), concurrency=7))

    assert set(result.limits) == {7}


def test_a_trial_that_never_ends_is_named_by_the_wait_that_it_blocks() -> None:
    spec = SimulationSpec(
        stage(num_steps=1), faults=Faults(hanging_share=1.0), trial_timeout_seconds=math.inf, wait_seconds=5_000.0
    )

    with pytest.raises(WaitTimeoutError, match=r"step 0: 0 groups finished of 4 wanted, 4 in flight, oldest: train-r0"):
        simulate(spec)
