"""Runs the stages of one segment, in order, until one does not pass."""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import CorruptionError, InvalidInputError, SeatrialError, TransientError, WaitTimeoutError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.stages import StageSpec
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_trainer.driver.cluster import Cluster
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.kept import kept
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.stages.ablate import ablate
from seatrial_trainer.driver.stages.evaluate import evaluate
from seatrial_trainer.driver.stages.overfit import overfit
from seatrial_trainer.driver.stages.preflight import preflight
from seatrial_trainer.driver.stages.train import train
from seatrial_trainer.driver.stopping import StopRequestedError
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.driver.training import GuardedError
from seatrial_trainer.storage.run_storage import RunStorage

log = structlog.get_logger(__name__)

_NO_INFLUENCE: Mapping[str, Any] = dict.fromkeys(
    (
        "guards",
        "suspend",
        "backoff_limit",
        "ttl_seconds_after_finished",
        "cost",
        "report",
        "tracking",
        "storage",
        "topology",
    ),
    True,
) | {"async_": {"concurrency": True}}
"""Parts of the spec that may change without making a finished stage's report stale."""


@dataclass(frozen=True)
class Driver:
    """One attempt at one segment."""

    request: DriverRequest
    inputs: Inputs
    storage: RunStorage
    cluster: Cluster
    telemetry: Telemetry
    live: LiveSpec
    stop: asyncio.Event

    async def run(self) -> list[StageReport]:
        """Run the stages; a finished one is answered from its report."""
        reports: list[StageReport] = []
        by_name = {stage.name: stage for stage in self.request.run.spec.stages}
        for name in self.request.stages:
            report = await self._run_stage(by_name[name])
            reports.append(report)
            if report.result is not StageResult.PASSED:
                break
        return reports

    async def _run_stage(self, stage: StageSpec) -> StageReport:
        storage = self.storage.stage(stage.name)
        question = fingerprint(self.request.run, stage)
        stored = storage.read_report(question)
        if stored and stored.result is StageResult.GATE_FAILED and self.request.resume:
            await asyncio.to_thread(storage.discard)
        elif stored and stored.result in {StageResult.PASSED, StageResult.GATE_FAILED}:
            log.info("stage is answered from its report", stage=stage.name, result=stored.result)
            if stage.train:
                self.telemetry.checkpoints = await asyncio.to_thread(kept, storage.checkpoints)
            self.telemetry.stage_ended(stored)
            return stored
        started = SYSTEM_CLOCK.now()
        self.telemetry.stage_started(stage)
        log.info("stage started", stage=stage.name, kind=stage.kind)
        report = await self._attempt(stage)
        seconds = SYSTEM_CLOCK.now() - started
        report = report.model_copy(
            update={
                "seconds": seconds,
                "fingerprint": question,
                "phase_seconds": dict(self.telemetry.phase_seconds),
                "outcomes": dict(self.telemetry.outcomes),
                "tokens": self.telemetry.tokens.by_harness(),
            }
        )
        await asyncio.to_thread(storage.write_report, report)
        self.telemetry.stage_ended(report)
        log.info("stage ended", stage=stage.name, result=report.result, message=report.message, seconds=seconds)
        return report

    async def _attempt(self, stage: StageSpec) -> StageReport:
        context = StageContext(
            stage=stage,
            spec=self.request.run.spec,
            inputs=self.inputs,
            run_storage=self.storage,
            cluster=self.cluster,
            telemetry=self.telemetry,
            live=self.live,
            stop=self.stop,
        )
        try:
            return await run_stage(context)
        except Exception as raised:  # noqa: BLE001  the root of the stage: every error becomes its report
            error = most_telling(raised)
            if isinstance(error, InvalidInputError) and not context.begun.is_set():
                raise error from None
            report = _report_of(stage, error)
        checkpoints = context.storage.checkpoints
        newest = await asyncio.to_thread(checkpoints.latest) if stage.train else None
        return report.model_copy(update={"checkpoint": checkpoints.address(newest) if newest else None})


def _report_of(stage: StageSpec, error: BaseException) -> StageReport:
    match error:
        case InvalidInputError():
            log.error("stage failed", stage=stage.name, error=str(error))  # the sentence says what to change
            return _ended(stage, StageResult.FAILED, str(error), needs_change=True)
        case StopRequestedError():
            return _ended(stage, StageResult.INTERRUPTED, "stopped; resume to go on")
        case GuardedError():
            return _ended(stage, StageResult.GUARDED, str(error))
        case _:
            log.error("stage failed", stage=stage.name, exc_info=error)
            name = "" if isinstance(error, SeatrialError) else f"{type(error).__name__}: "
            message = f"{name}{error}; the traceback is in the driver's log"
            return _ended(stage, StageResult.FAILED, message, needs_change=isinstance(error, CorruptionError))


def most_telling(error: BaseException) -> BaseException:
    """What a person has to know of several errors that task groups wrapped together.

    One fault makes others: a dead pool makes trials end as if somebody had stopped them, and waits run out. So the
    error that is told is the one that is least likely a consequence; among equals, the one that was raised first.
    """
    return min(_leaves(error), key=_consequence)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    group = error if isinstance(error, BaseExceptionGroup) else error.__cause__
    if not isinstance(group, BaseExceptionGroup):
        yield error
        return
    for one in group.exceptions:
        if one is error:  # the first of several, raised alone because of all
            yield one
        else:
            yield from _leaves(one)


def _consequence(error: BaseException) -> int:
    """How much an error looks like the consequence of another one."""
    match error:
        case InvalidInputError() | CorruptionError():
            return 0
        case GuardedError():
            return 1
        case WaitTimeoutError():
            return 4
        case StopRequestedError():
            return 5
        case TransientError():
            return 3
        case _:
            return 2


async def run_stage(context: StageContext) -> StageReport:
    """Run a stage of any kind.

    Raises:
        InvalidInputError: if what the stage asks for is not there.
        StopRequestedError: if the driver was asked to stop.
    """
    stage = context.stage
    if context.stop.is_set():
        raise StopRequestedError
    if stage.preflight:
        return await preflight(context, stage.preflight)
    if stage.evaluate:
        return await evaluate(context, stage.evaluate)
    if stage.overfit:
        return await overfit(context, stage.overfit)
    if stage.ablate:
        return await ablate(context, stage.ablate)
    if stage.train:
        return await train(context, stage.train)
    raise ValueError(f"stage {stage.name} is of no kind")


def fingerprint(run: RLRun, stage: StageSpec) -> str:
    """Digest of all that decides a stage's result: the spec without what has no influence, and the stages before."""
    spec: dict[str, Any] = run.spec.model_dump(mode="json", exclude={**_NO_INFLUENCE, "stages": True})
    names = [one.name for one in run.spec.stages]
    before = [one.model_dump(mode="json") for one in run.spec.stages[: names.index(stage.name) + 1]]
    text = json.dumps([spec, before], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _ended(stage: StageSpec, result: StageResult, message: str, *, needs_change: bool = False) -> StageReport:
    return StageReport(stage=stage.name, kind=stage.kind, result=result, message=message, needs_change=needs_change)
