import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.playbook import ExitCode
from seatrial_api.spec.operations import CostSpec
from seatrial_api.spec.stages import StageSpec
from seatrial_api.stage_report import GateResult, StageReport, StageResult
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.driver.spending import Spending
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from tests.clocks import HeldClock
from tests.steps import make_step
from tests.trajectories import make_trajectory

STAGES = [
    StageSpec.model_validate({"name": "preflight", "preflight": {}}),
    StageSpec.model_validate({"name": "train", "train": {"steps": 10}}),
]


def make_telemetry(clock: HeldClock) -> Telemetry:
    return Telemetry("quickstart", STAGES, RunMetrics("default", "quickstart"), clock=clock)


def test_the_remaining_time_follows_the_pace_of_the_running_unit() -> None:
    clock = HeldClock()
    telemetry = make_telemetry(clock)
    telemetry.stage_started(STAGES[1])
    clock.advance(100)
    telemetry.units(0, 10, "steps")
    clock.advance(20)
    telemetry.units(4, 10, "steps")
    progress = telemetry.snapshot()
    assert progress.percent == 40
    assert progress.estimated_remaining_seconds == pytest.approx(30)


def test_a_stage_shows_its_gates_while_it_runs_and_its_result_after() -> None:
    clock = HeldClock()
    telemetry = make_telemetry(clock)
    gate = GateResult(name="error rate", value=0.0, bound=0.01, direction="AtMost")
    telemetry.stage_started(STAGES[0])
    clock.advance(5)
    telemetry.gate(gate)
    running, to_come = telemetry.snapshot().stages
    assert (running.result, running.gates, running.seconds) == (None, [gate], 5)
    assert to_come.seconds is None
    telemetry.stage_ended(
        StageReport(stage="preflight", kind="Preflight", result=StageResult.PASSED, gates=[gate], seconds=6)
    )
    done, _ = telemetry.snapshot().stages
    assert (done.result, done.seconds) == (StageResult.PASSED, 6)


def test_trials_are_counted_once_however_they_end() -> None:
    telemetry = make_telemetry(HeldClock())
    telemetry.stage_started(STAGES[1])
    for _ in range(3):
        telemetry.trial_started()
    telemetry.trial_ended(make_trajectory())
    telemetry.trial_lost()
    progress = telemetry.snapshot()
    assert progress.in_flight == 1
    assert progress.outcomes == {"Completed": 1}


def test_the_error_rate_is_that_of_the_newest_trials_of_the_stage() -> None:
    telemetry = Telemetry("quickstart", STAGES, RunMetrics("default", "quickstart"), error_window=4)
    telemetry.stage_started(STAGES[0])
    assert "error_rate" not in telemetry.snapshot().metrics
    for outcome in (Outcome.ENGINE_FAILED, Outcome.COMPLETED, Outcome.CANCELLED, Outcome.STEPS_EXHAUSTED):
        telemetry.trial_ended(make_trajectory(outcome=outcome))
    assert telemetry.snapshot().metrics["error_rate"] == pytest.approx(1 / 3)
    for _ in range(2):
        telemetry.trial_ended(make_trajectory())
    assert telemetry.snapshot().metrics["error_rate"] == 0
    telemetry.trial_ended(make_trajectory(outcome=Outcome.ENGINE_FAILED))
    telemetry.stage_started(STAGES[1])
    assert "error_rate" not in telemetry.snapshot().metrics


def test_what_the_run_has_cost_is_told_where_there_are_prices() -> None:
    clock = HeldClock()
    free = make_telemetry(clock)
    spending = Spending(CostSpec(node_hour=2.0, completion_million_tokens=10.0), nodes=2, clock=clock)
    priced = Telemetry("quickstart", STAGES, RunMetrics("default", "quickstart"), clock=clock, spending=spending)
    for telemetry in (free, priced):
        telemetry.engines_looked_at(PoolMetrics(generated_tokens_total=100_000))
        clock.advance(3600)
        telemetry.engines_looked_at(PoolMetrics(generated_tokens_total=300_000))
    assert "cost_dollars" not in free.snapshot().metrics
    assert priced.snapshot().metrics["cost_dollars"] == pytest.approx(2 * 2 * 2.0 + 3.0)


def test_phases_add_up_and_start_anew_with_a_stage() -> None:
    clock = HeldClock()
    telemetry = make_telemetry(clock)
    telemetry.stage_started(STAGES[0])
    for _ in range(2):
        with telemetry.phase("start engines"):
            clock.advance(3)
    assert telemetry.phase_seconds == {"start engines": 6}
    telemetry.stage_started(STAGES[1])
    assert telemetry.phase_seconds == {}


def test_a_step_reaches_every_tracker() -> None:
    logged: dict[str, float] = {}

    class Recorder:
        def log(self, step: int, scalars: dict[str, float]) -> None:
            logged.update({f"{step}:{name}": value for name, value in scalars.items()})

        def close(self) -> None:
            logged.clear()

    telemetry = Telemetry("quickstart", STAGES, RunMetrics("default", "quickstart"), [Recorder()])
    telemetry.step_ended(make_step(version=4, reward_mean=0.75))
    assert logged["4:train/reward_mean"] == 0.75
    assert telemetry.snapshot().metrics["reward"] == 0.75


def test_a_stage_that_ended_shows_why_and_where_it_goes_on() -> None:
    telemetry = make_telemetry(HeldClock())
    report = StageReport(
        stage="train",
        kind="Train",
        result=StageResult.FAILED,
        message="a reward is below zero",
        checkpoint="stages/train/checkpoints/000004",
        needs_change=True,
    )
    telemetry.stage_ended(report)
    shown = telemetry.snapshot().stages[1]
    assert (shown.message, shown.checkpoint, shown.needs_change) == (report.message, report.checkpoint, True)


def test_a_driver_that_ended_shows_how_and_does_nothing_any_more() -> None:
    telemetry = make_telemetry(HeldClock())
    telemetry.stage_started(STAGES[1])
    telemetry.activity("stopping engines")
    assert telemetry.snapshot().ended is None
    telemetry.ended(ExitCode.INVALID, "the model is not there")
    progress = telemetry.snapshot()
    assert (progress.ended, progress.message) == (ExitCode.INVALID, "the model is not there")
    assert (progress.stage, progress.activity) == ("", "")
