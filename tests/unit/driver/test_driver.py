import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError, TransientError, WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_api.rlrun import RLRun
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_trainer.driver.driver import Driver, fingerprint, most_telling
from seatrial_trainer.driver.guards import GuardFired
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.stopping import StopRequestedError
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.driver.training import GuardedError
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from tests.training_doubles import Moment, NotedCluster, completes, make_inputs, make_run, never_ends, stage_of

STAGES: list[dict[str, Any]] = [
    {"name": "before", "evaluate": {"checkpoint": "Initial", "passes": 2}},
    {"name": "train", "train": {"steps": 2, "validateEverySteps": 1}},
    {"name": "after", "evaluate": {"checkpoint": "Last", "passes": 2, "minGain": 0.1}},
]


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


def driver_of(
    storage: RunStorage,
    cluster: NotedCluster,
    *,
    run: RLRun | None = None,
    stages: Sequence[str] = ("before", "train", "after"),
    resume: bool = False,
) -> Driver:
    run = run or make_run(spec__stages=STAGES)
    request = DriverRequest(run=run, base_dir=Path(), stages=list(stages), resume=resume)
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    return Driver(request, make_inputs(), storage, cluster, telemetry, LiveSpec(run), asyncio.Event())  # type: ignore[arg-type]  a double


def results(reports: Sequence[StageReport]) -> dict[str, StageResult]:
    return {report.stage: report.result for report in reports}


async def test_nothing_runs_after_a_stage_that_did_not_pass(storage: RunStorage) -> None:
    reports = await driver_of(storage, NotedCluster(completes)).run()
    assert results(reports) == {
        "before": StageResult.PASSED,
        "train": StageResult.PASSED,
        "after": StageResult.GATE_FAILED,
    }
    again = await driver_of(storage, NotedCluster(completes), stages=["after", "train"]).run()
    assert results(again) == {"after": StageResult.GATE_FAILED}


async def test_a_finished_stage_is_answered_without_a_trial(storage: RunStorage) -> None:
    first = await driver_of(storage, NotedCluster(completes), stages=["before"]).run()
    again = await driver_of(storage, NotedCluster(never_ends), stages=["before"]).run()
    assert again == first


async def test_a_train_stage_that_is_answered_from_its_report_tells_of_its_checkpoints(storage: RunStorage) -> None:
    await driver_of(storage, NotedCluster(completes), stages=["train"]).run()
    answering = driver_of(storage, NotedCluster(never_ends), stages=["train"])
    await answering.run()
    told = answering.telemetry.snapshot().checkpoints
    assert told is not None
    assert told.last is not None
    assert (told.last.step, told.last.validation_pass_rate) == (2, 0.0)


async def test_a_stage_whose_gate_failed_runs_anew_on_resumption_without_its_old_data(storage: RunStorage) -> None:
    tried: list[TrialTicket] = []

    async def note(ticket: TrialTicket) -> Outcome:
        tried.append(ticket)
        return Outcome.COMPLETED

    await driver_of(storage, NotedCluster(completes)).run()
    (storage.root / "trajectories" / "after" / "old.parquet").write_bytes(b"")
    reports = await driver_of(storage, NotedCluster(note), resume=True).run()
    assert results(reports)["after"] is StageResult.GATE_FAILED
    assert {ticket.purpose.split("-")[0] for ticket in tried} == {"after"}
    assert len(tried) == 3 * 2
    assert "old" not in storage.stage("after").group_ids()


async def test_a_stage_that_stops_names_the_checkpoint_it_goes_on_from(storage: RunStorage) -> None:
    async def hangs_after_the_first_step(ticket: TrialTicket) -> Outcome:
        return await (never_ends if ticket.start_version and ticket.purpose == "train" else completes)(ticket)

    def stop_after_a_step(moment: Moment, _version: int) -> None:
        if moment == "published":
            driver.stop.set()

    driver = driver_of(storage, NotedCluster(hangs_after_the_first_step, stop_after_a_step), stages=["train"])
    (report,) = await driver.run()
    assert report.result is StageResult.INTERRUPTED
    assert report.checkpoint == str(storage.stage("train").folder / "checkpoints" / "000001")


async def test_a_measurement_stops_although_its_trials_hang_and_goes_on_where_it_was(storage: RunStorage) -> None:
    hung = asyncio.Event()

    async def hangs_at_one_task(ticket: TrialTicket) -> Outcome:
        if ticket.task != "held-02":
            return Outcome.COMPLETED
        hung.set()
        return await never_ends(ticket)

    driver = driver_of(storage, NotedCluster(hangs_at_one_task), stages=["before"])
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(driver.run())
        await hung.wait()
        while len(storage.stage("before").group_ids()) < 2:
            await SYSTEM_CLOCK.sleep(0.01)
        driver.stop.set()
    (report,) = running.result()
    assert report.result is StageResult.INTERRUPTED
    tried: list[str] = []

    async def note(ticket: TrialTicket) -> Outcome:
        tried.append(ticket.task)
        return Outcome.COMPLETED

    await driver_of(storage, NotedCluster(note), stages=["before"]).run()
    assert tried == ["held-02", "held-02"]


async def test_a_driver_that_was_asked_to_stop_begins_no_stage(storage: RunStorage) -> None:
    driver = driver_of(storage, NotedCluster(never_ends))
    driver.stop.set()
    assert results(await driver.run()) == {"before": StageResult.INTERRUPTED}


async def test_a_fault_becomes_a_report_that_names_it(storage: RunStorage) -> None:
    def break_down(moment: Moment, _version: int) -> None:
        if moment == "publish":
            raise ConnectionError("the engines are gone")

    (report,) = await driver_of(storage, NotedCluster(completes, break_down), stages=["train"]).run()
    assert report.result is StageResult.FAILED
    assert "ConnectionError: the engines are gone" in report.message
    assert not report.needs_change, "it may go better the next time"


async def test_bad_input_that_is_found_while_trials_run_fails_the_stage_with_its_sentence(storage: RunStorage) -> None:
    def refuse_rewards(moment: Moment, version: int) -> None:
        if (moment, version) == ("train", 1):
            raise InvalidInputError("maxrl needs rewards of 0 or more, and a task gave -1; change its verifier")

    (report,) = await driver_of(storage, NotedCluster(completes, refuse_rewards), stages=["train"]).run()
    assert report.result is StageResult.FAILED
    assert report.message == "maxrl needs rewards of 0 or more, and a task gave -1; change its verifier"
    assert report.needs_change
    assert storage.stage("train").read_report(report.fingerprint) == report
    (again,) = await driver_of(storage, NotedCluster(completes, refuse_rewards), stages=["train"]).run()
    assert again.result is StageResult.FAILED, "its logged batch is trained again before any trial runs"


@pytest.mark.parametrize(
    "errors",
    [
        [InvalidInputError("told"), GuardedError(GuardFired("maxEntropy", 2, 1)), StopRequestedError()],
        [GuardedError(GuardFired("maxEntropy", 2, 1)), TransientError("an engine is gone")],
        [ConnectionError("told"), TransientError("an engine is gone"), StopRequestedError()],
        [TransientError("told"), WaitTimeoutError(waiting_for="a batch"), StopRequestedError()],
        [WaitTimeoutError(waiting_for="a batch"), StopRequestedError()],
    ],
)
def test_of_several_errors_the_one_that_is_no_consequence_is_told(errors: list[Exception]) -> None:
    told, *others = errors
    assert most_telling(told) is told
    assert most_telling(ExceptionGroup("", errors)) is told
    assert most_telling(ExceptionGroup("", [*others, ExceptionGroup("", [told])])) is told


def test_among_equal_errors_the_first_is_told() -> None:
    first, second = TransientError("first"), TransientError("second")
    assert most_telling(ExceptionGroup("", [first, second])) is first


def test_what_an_error_was_raised_for_instead_of_all_is_looked_at_too() -> None:
    stopped, told = StopRequestedError(), TransientError("the engines are gone")
    stopped.__cause__ = ExceptionGroup("", [StopRequestedError(), told])
    assert most_telling(stopped) is told


async def test_bad_input_ends_the_driver_and_leaves_no_report(storage: RunStorage) -> None:
    with pytest.raises(InvalidInputError, match="no earlier Train stage left a checkpoint"):
        await driver_of(storage, NotedCluster(completes), stages=["after"]).run()
    assert list(storage.reports()) == []


def test_only_what_decides_a_result_makes_a_report_stale() -> None:
    run = make_run(spec__stages=STAGES)
    train = stage_of(run, "train")
    same = make_run(spec__stages=STAGES, spec__guards={"maxEntropy": 9.0}, spec__cost={"nodeHour": 2.0})
    assert fingerprint(same, train) == fingerprint(run, train)
    calmer = make_run(spec__stages=STAGES, spec__async__concurrency=2)
    assert fingerprint(calmer, train) == fingerprint(run, train), "it may change while the run goes on"
    other = make_run(spec__stages=STAGES, spec__model__dtype="float32")
    assert fingerprint(other, train) != fingerprint(run, train)
    longer = make_run(spec__stages=[*STAGES[:2], {**STAGES[2], "evaluate": {"checkpoint": "Last"}}])
    assert fingerprint(longer, train) == fingerprint(run, train)
    assert fingerprint(longer, stage_of(longer, "after")) != fingerprint(run, stage_of(run, "after"))


async def test_a_gate_without_anything_to_compare_with_fails_and_says_so(storage: RunStorage) -> None:
    await driver_of(storage, NotedCluster(completes), stages=["before", "train"]).run()
    shutil.rmtree(storage.root / "trajectories" / "before")
    (report,) = await driver_of(storage, NotedCluster(completes), stages=["after"]).run()
    assert report.result is StageResult.GATE_FAILED
    assert [(gate.value, gate.detail) for gate in report.gates] == [
        (None, "no Initial evaluation measured a task of it in the same way")
    ]


async def test_an_evaluation_that_infrastructure_ended_says_what_happened(storage: RunStorage) -> None:
    async def fails(_ticket: TrialTicket) -> Outcome:
        return Outcome.SANDBOX_FAILED

    (report,) = await driver_of(storage, NotedCluster(fails), stages=["before"]).run()
    assert report.result is StageResult.FAILED
    assert report.message.startswith("held-out T=1: none of 18 trials could be graded (18 x SandboxFailed;")


async def test_an_evaluation_that_infrastructure_ended_is_measured_once_it_is_repaired(storage: RunStorage) -> None:
    async def fails(_ticket: TrialTicket) -> Outcome:
        return Outcome.SANDBOX_FAILED

    await driver_of(storage, NotedCluster(fails), stages=["before"]).run()
    (report,) = await driver_of(storage, NotedCluster(completes), stages=["before"]).run()
    assert report.result is StageResult.PASSED, "stored failures are no measurement"
    (measured,) = report.evaluations
    assert measured.outcomes == {"Completed": 6}
