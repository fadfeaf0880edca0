"""The judge of a run, as the driver starts it: a real Ray, a real gateway, a provider over real HTTP."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import ray

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.judge import JudgeBudget, JudgeSpec
from seatrial_rollout.judge.actor import JudgeHost
from seatrial_rollout.judge.client import Verification
from seatrial_rollout.judge.errors import NoVerdictError
from seatrial_trainer.driver.placement import Placement
from seatrial_trainer.driver.processes import RayProcesses
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.storage.run_storage import RunStorage
from tests.judge_provider import JudgeService, environment, provider
from tests.leftovers import descendants, eventually, is_running, name_of
from tests.training_doubles import make_inputs, make_run

pytestmark = pytest.mark.asyncio(loop_scope="module")


def processes_of(spec: JudgeSpec, storage: RunStorage) -> RayProcesses:
    run = make_run(spec__topology={"nodes": 1, "gpusPerNode": 0}, spec__async__weightSync__method="gloo")
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    judged = run.spec.model_copy(update={"judge": spec})
    return RayProcesses(judged, make_inputs(), storage, telemetry, Placement(None), "run")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[JudgeService]:
    async with JudgeService().serve() as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(service: JudgeService) -> AsyncIterator[RayProcesses]:
    folder = Path(tempfile.mkdtemp(prefix="sj-"))
    made = provider(service.url, price=1.0)
    spec = JudgeSpec(providers=[made], model="judge", run_budget=JudgeBudget(requests=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        for name, value in environment(made).items():
            patch.setenv(name, value)
        processes = processes_of(spec, RunStorage(folder / "run"))
        try:
            await processes.connect()
            yield processes
        finally:
            await processes.disconnect()
            shutil.rmtree(folder, ignore_errors=True)


async def ask(host: JudgeHost, text: str) -> str:
    body = {"model": "judge", "messages": [{"role": "user", "content": text}]}
    async with aiohttp.ClientSession() as session:
        return await Verification.begin(host.access, "trial-1", 60).ask(session, body)


async def test_no_other_process_inherits_a_key(processes: RayProcesses) -> None:
    inherited = await ray.remote(num_cpus=0)(lambda: dict(os.environ)).remote()
    assert "FAKE_KEY_0" in os.environ
    assert "FAKE_KEY_0" not in inherited


async def test_a_gateway_that_dies_is_replaced_at_its_address_and_remembers_what_was_used(
    processes: RayProcesses, service: JudgeService
) -> None:
    host = processes.judge()
    assert host is not None
    await host.start()
    url = host.access.url
    async with asyncio.TaskGroup() as group:
        supervising = group.create_task(host.run())
        try:
            assert await host.dollars() == 0
            assert await ask(host, "first") == "yes"
            assert (spent := await host.dollars())
            (pid,) = [pid for pid in descendants(os.getpid()) if name_of(pid).startswith("ray::JudgeActor")]
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not is_running(pid), what="the gateway to die")
            assert await ask(host, "second") == "yes"
            assert host.access.url == url
            assert await host.dollars() == pytest.approx(2 * spent)
            with pytest.raises(NoVerdictError, match="the run has used 2 of 2 requests"):
                await ask(host, "third")
            assert service.keys_used == ["fake_key_0"] * 2
        finally:
            supervising.cancel()
            await host.stop()
    with pytest.raises(NoVerdictError, match="does not tell"):
        await Verification.begin(host.access, "trial-1", 60).check()


async def test_a_run_whose_keys_are_not_set_does_not_begin(tmp_path: Path) -> None:
    spec = JudgeSpec(providers=[provider("http://x", name="other", num_keys=2)], model="judge")
    with pytest.raises(InvalidInputError, match="set OTHER_KEY_0, OTHER_KEY_1 in the driver's environment"):
        processes_of(spec, RunStorage(tmp_path))
