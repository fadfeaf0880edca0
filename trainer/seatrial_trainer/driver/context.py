"""What a stage works with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from seatrial_api.ceilings import algorithmic_ceiling
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.stages import StageSpec
from seatrial_api.stage_report import GateResult, StageReport, StageResult
from seatrial_trainer.driver.cluster import Cluster
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.storage.run_storage import RunStorage, StageStorage


@dataclass(frozen=True)
class StageContext:
    """One stage of one run."""

    stage: StageSpec
    spec: RLRunSpec
    inputs: Inputs
    run_storage: RunStorage
    cluster: Cluster
    telemetry: Telemetry
    live: LiveSpec
    """The parts of the spec that may change while the stage runs; in `spec` they stand as they were at first."""
    stop: asyncio.Event
    """Set when a person or the platform wants the driver to end."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once trials may run. Bad input that is found before costs nothing and leaves no report."""

    @property
    def storage(self) -> StageStorage:
        """The stage's part of run storage."""
        return self.run_storage.stage(self.stage.name)

    @property
    def algorithmic_ceiling(self) -> int:
        """Trials that training can have in flight; what measures the run at its own concurrency keeps to it too."""
        algorithm = self.spec.algorithm
        return algorithmic_ceiling(self.spec.async_.max_staleness_steps, algorithm.batch_size, algorithm.group_size)

    @asynccontextmanager
    async def dispatching(self, ceiling: int | None = None) -> AsyncIterator[TrialDispatcher]:
        """Run trials while the block runs: the stage's work.

        Args:
            ceiling: Trials that can be in flight within the staleness bound; the run's own if none.
        """
        async with self.cluster.dispatching(ceiling or self.algorithmic_ceiling) as dispatcher:
            self.begun.set()
            yield dispatcher

    def earlier_stages(self, kind: str) -> list[StageSpec]:
        """Stages of a kind before this one, in order."""
        names = [stage.name for stage in self.spec.stages]
        return [stage for stage in self.spec.stages[: names.index(self.stage.name)] if stage.kind == kind]

    def report(self, *gates: GateResult, message: str = "") -> StageReport:
        """The report of a stage that ran to its end; it passed if every gate holds."""
        failed = [gate for gate in gates if not gate.passed]
        result = StageResult.GATE_FAILED if failed else StageResult.PASSED
        sentence = "; ".join(f"{gate.name} does not hold" for gate in failed) or message
        return StageReport(
            stage=self.stage.name,
            kind=self.stage.kind,
            result=result,
            message=sentence,
            gates=list(gates),
            outcomes=dict(self.telemetry.outcomes),
        )
