"""What simulated runs say about a setting, and the advice that is made of it."""

from dataclasses import replace

import pytest

from seatrial_api.demand import assumed_shape
from seatrial_api.rlrun import RLRun
from seatrial_trainer.scheduling.advice import TOLERANCE, advise
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulated_engines import EngineModel
from seatrial_trainer.scheduling.simulated_figures import SimulatedFigures, figures_of
from seatrial_trainer.scheduling.simulated_trials import Faults, Learning
from seatrial_trainer.scheduling.simulator import SimulationSpec, simulate
from seatrial_trainer.scheduling.workload import Workload
from tests.manifests import run_manifest


def setting(**changes: object) -> SimulationSpec:
    stage = SchedulerSettings(
        "train", AssemblyRules(group_size=8, min_valid=4), batch_size=4, max_staleness=3, num_steps=12
    )
    return replace(SimulationSpec(stage, num_tasks=400, concurrency=128), **changes)  # type: ignore[arg-type]


def figures(spec: SimulationSpec) -> SimulatedFigures:
    return figures_of(simulate(spec), spec)


def test_shares_of_a_run_add_up() -> None:
    found = figures(setting(faults=Faults(failing_share=0.05)))
    assert sum(found.staleness.values()) == pytest.approx(1)
    assert found.trainer_used + found.waited == pytest.approx(1, abs=0.01)
    assert 0 < found.held < found.waited
    assert 0.02 < found.failed < 0.09
    assert len(found.reward_by_step) == 12


def test_neighbours_slow_a_request_down() -> None:
    alone = EngineModel(num_engines=2, seats=256)
    crowded = replace(alone, seconds_per_neighbour=0.002)
    assert figures(setting(engines=crowded)).step_seconds > 1.1 * figures(setting(engines=alone)).step_seconds


def test_a_full_cache_costs_the_time_to_compute_contexts_again() -> None:
    roomy = EngineModel(num_engines=2, seats=256, recomputed_per_second=10.0)
    full = figures(setting(engines=replace(roomy, kv_capacity=400)))
    assert full.preemptions_per_trial > 1
    assert full.step_seconds > 1.1 * figures(setting(engines=roomy)).step_seconds


def test_the_curve_of_a_run_dips_where_its_cohorts_do_not() -> None:
    learning = Learning(start=0.5, cost_of_length=0.2)  # nothing is learned: whatever the curve does is its order
    runs = [figures(setting(learning=learning, workload=Workload(seed=seed))) for seed in range(6)]
    by_step = [sum(run.reward_by_step[step] for run in runs) / len(runs) for step in range(9)]
    first_cohort = sum(run.reward_by_cohort[0] for run in runs) / len(runs)
    assert by_step[0] > first_cohort + 0.05, "the first batch is the short tasks, which are the easier ones"
    assert min(by_step[2:5]) < first_cohort - 0.05, "the long ones come when they are due"


def test_a_workload_takes_the_size_it_is_told() -> None:
    sized = Workload().resized(mean_seconds=30.0, mean_tokens=2_000.0, max_tokens=8_000.0)
    shapes = [sized.shape(f"task-{number}", slot) for number in range(100) for slot in range(4)]
    assert sum(shape.seconds(sized.tokens_per_second) for shape in shapes) / 400 == pytest.approx(30, rel=0.2)
    assert sum(shape.context_tokens for shape in shapes) / 400 == pytest.approx(2_000, rel=0.25)
    assert max(shape.context_tokens for shape in shapes) <= 8_000


def test_advice_is_the_fewest_trials_that_keep_the_pace() -> None:
    algorithm = {"groupSize": 8, "batchSize": 4}
    spec = RLRun.model_validate(run_manifest(spec__algorithm=algorithm, spec__async={"concurrency": 10})).spec
    advice = advise(spec)
    assert max(advice.by_concurrency) == 4 * 4 * 8
    assert advice.slowdown(advice.concurrency) <= TOLERANCE
    assert all(advice.slowdown(fewer) > TOLERANCE for fewer in advice.by_concurrency if fewer < advice.concurrency)
    assert advice.slowdown(10) > 1, "ten trials in flight are far too few"
    assert f"{advice.concurrency} trials in flight" in advice.describe()
    assert advice.seconds == assumed_shape(spec).seconds


def test_advice_keeps_to_what_the_engines_bear() -> None:
    spec = RLRun.model_validate(run_manifest(spec__algorithm={"groupSize": 8, "batchSize": 4})).spec
    assert max(advise(spec, highest=20).by_concurrency) == 20
