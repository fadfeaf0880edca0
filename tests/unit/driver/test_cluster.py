"""The order in which a segment's processes start and stop, with processes that only take notes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import pytest

from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_api.rlrun import RLRunSpec
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_trainer.driver.cluster import Cluster
from seatrial_trainer.driver.live import LiveSpec
from seatrial_trainer.driver.processes import Processes
from seatrial_trainer.driver.stopping import StopRequestedError
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.storage.run_storage import RunStorage
from tests.training_doubles import make_inputs, make_run


@dataclass
class NotedProcesses(Processes):
    """Notes what is begun and ended, in order; one beginning may fail or hang."""

    failing: dict[str, Exception] = field(default_factory=dict)
    hanging: str = ""
    has_judge: bool = False
    notes: list[str] = field(default_factory=list)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, what: str) -> None:
        """Something is started."""
        self.notes.append(what)
        if what in self.failing:
            raise self.failing[what]
        if what == self.hanging:
            self.hangs.set()
            await asyncio.Event().wait()

    @override
    async def connect(self) -> None:
        await self.begin("connect")

    @override
    async def disconnect(self) -> None:
        self.notes.append("disconnect")

    @override
    def engines(self) -> Any:
        return NotedPart("engines", self)

    @override
    def trial_hosts(self) -> Any:
        return NotedPart("trial hosts", self)

    @override
    def judge(self) -> Any:
        return NotedPart("judge", self) if self.has_judge else None

    @override
    async def start_policy(self, spec: RLRunSpec) -> Any:
        await self.begin("start policy")
        return NotedRanks(self)


@dataclass
class NotedRanks:
    """The policy."""

    processes: NotedProcesses

    def stop(self) -> None:
        """End it."""
        self.processes.notes.append("stop policy")


@dataclass
class NotedPart:
    """Engines or trial hosts."""

    name: str
    processes: NotedProcesses
    sandbox: str = "local, isolated"

    async def start(self) -> None:
        """Come up."""
        await self.processes.begin(f"start {self.name}")

    async def stop(self) -> None:
        """Go down."""
        self.processes.notes.append(f"stop {self.name}")

    async def run(self) -> None:
        """Replace what is lost."""
        await self.processes.begin(f"supervise {self.name}")
        await asyncio.Event().wait()

    def addresses(self) -> list[Any]:
        """Nothing listens."""
        return []

    def statuses(self) -> list[Any]:
        """There is nothing to tell of."""
        return []

    async def expect(self, trials: Mapping[str, int]) -> None:
        """Nothing is made ready for trials to come."""

    async def dollars(self) -> float:
        """Nothing is spent."""
        return 0.0

    async def metrics(self) -> PoolMetrics:
        """Room for many trials."""
        return PoolMetrics(kv_capacity_tokens=1_000_000)


def cluster_of(processes: NotedProcesses, tmp_path: Path, stop: asyncio.Event | None = None) -> Cluster:
    run = make_run()
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    return Cluster(LiveSpec(run), make_inputs(), RunStorage(tmp_path), telemetry, processes, stop or asyncio.Event())


def ended(processes: NotedProcesses) -> list[str]:
    return [note for note in processes.notes if note.startswith(("stop", "disconnect"))]


async def test_nothing_is_started_before_it_is_needed(tmp_path: Path) -> None:
    processes = NotedProcesses()
    async with cluster_of(processes, tmp_path):
        pass
    assert processes.notes == []


async def test_the_judge_comes_up_with_the_trial_hosts_and_outlives_their_trials(tmp_path: Path) -> None:
    processes = NotedProcesses(has_judge=True)
    async with cluster_of(processes, tmp_path) as cluster:
        await cluster.rollout()
    assert {"start judge", "supervise judge"} <= set(processes.notes)
    assert ended(processes) == ["stop trial hosts", "stop judge", "stop engines", "disconnect"]


async def test_what_was_started_is_stopped_in_reverse_order(tmp_path: Path) -> None:
    processes = NotedProcesses()
    async with cluster_of(processes, tmp_path) as cluster:
        await cluster.rollout()
        await cluster.policy()
        assert await cluster.rollout() is await cluster.rollout()
    assert [note for note in processes.notes if note.startswith("start")] == [
        "start engines",
        "start trial hosts",
        "start policy",
    ]
    assert ended(processes) == ["stop policy", "stop trial hosts", "stop engines", "disconnect"]


async def test_an_error_of_the_block_is_raised_as_it_is_after_everything_was_stopped(tmp_path: Path) -> None:
    processes = NotedProcesses()

    async def break_down() -> None:
        async with cluster_of(processes, tmp_path) as cluster:
            await cluster.rollout()
            raise ConnectionError("told")

    with pytest.raises(ConnectionError, match="told"):
        await break_down()
    assert ended(processes) == ["stop trial hosts", "stop engines", "disconnect"]


@pytest.mark.parametrize("part", ["start engines", "start trial hosts"])
async def test_a_part_that_does_not_come_up_leaves_none_of_the_others(tmp_path: Path, part: str) -> None:
    processes = NotedProcesses(failing={part: TransientError("it did not come up")})
    with pytest.raises(ExceptionGroup) as raised:
        async with cluster_of(processes, tmp_path) as cluster:
            await cluster.rollout()
    assert raised.group_contains(TransientError, match="it did not come up")
    assert ended(processes) == ["stop trial hosts", "stop engines", "disconnect"]


async def test_a_policy_that_does_not_come_up_is_ended_like_one_that_did(tmp_path: Path) -> None:
    processes = NotedProcesses(failing={"start policy": TransientError("a rank died")})
    with pytest.raises(TransientError, match="a rank died"):
        async with cluster_of(processes, tmp_path) as cluster:
            await cluster.policy()
    assert processes.notes == ["connect", "start policy", "disconnect"]


async def test_a_run_whose_gpus_are_not_there_starts_nothing_and_lets_go_of_ray(tmp_path: Path) -> None:
    processes = NotedProcesses(failing={"connect": InvalidInputError("gpusPerNode: 8 wanted and 0 found")})
    with pytest.raises(InvalidInputError, match="8 wanted"):
        async with cluster_of(processes, tmp_path) as cluster:
            await cluster.rollout()
    assert processes.notes == ["connect", "disconnect"]


@pytest.mark.parametrize("hanging", ["connect", "start engines", "start trial hosts", "start policy"])
async def test_a_stop_breaks_off_whatever_is_just_being_started(tmp_path: Path, hanging: str) -> None:
    processes, stop = NotedProcesses(hanging=hanging), asyncio.Event()

    async def start() -> None:
        async with cluster_of(processes, tmp_path, stop) as cluster:
            await cluster.rollout()
            await cluster.policy()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(_stopped(start()))
        await processes.hangs.wait()
        stop.set()
        assert await starting
    parts = [] if hanging == "connect" else ["stop trial hosts", "stop engines"]
    assert ended(processes) == [*parts, "disconnect"]


async def test_engines_that_cannot_be_kept_alive_end_the_stage_that_runs_trials(tmp_path: Path) -> None:
    processes = NotedProcesses(failing={"supervise engines": TransientError("engine-0 could not be replaced")})
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(10), cluster_of(processes, tmp_path) as cluster, cluster.dispatching(4):
            await asyncio.Event().wait()
    assert raised.group_contains(TransientError, match="engine-0")
    assert ended(processes) == ["stop trial hosts", "stop engines", "disconnect"]


async def _stopped(work: Any) -> bool:
    """Whether a stop ended the work."""
    try:
        await work
    except StopRequestedError:
        return True
    return False
