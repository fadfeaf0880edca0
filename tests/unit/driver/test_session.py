import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress
from seatrial_trainer.driver.request import ADDRESS_FILE, DriverAddress
from seatrial_trainer.driver.session import ServerSettings, drive
from seatrial_trainer.storage.run_storage import REQUEST_FILE
from tests.training_doubles import make_run


def request_without_a_model(base_dir: Path) -> DriverRequest:
    return DriverRequest(run=make_run(), base_dir=base_dir, stages=["preflight"])


def server(token: str | None = None) -> ServerSettings:
    return ServerSettings("127.0.0.1", 0, token)


@asynccontextmanager
async def ended_driver(tmp_path: Path, token: str) -> AsyncIterator[tuple[asyncio.Task[ExitCode], str]]:
    """A driver with a remote launcher that could not start its run, and its address."""
    folder = tmp_path / "storage" / "run-1234"
    request = tmp_path / "request.json"
    request.write_text(request_without_a_model(tmp_path).model_dump_json(by_alias=True))
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(drive(folder, request, server(token)))
        deadline = Deadline.after(60)
        while not (folder / ADDRESS_FILE).exists():
            deadline.check("the driver to serve")
            await SYSTEM_CLOCK.sleep(0.01)
        yield driving, DriverAddress.model_validate_json((folder / ADDRESS_FILE).read_text()).url


async def told_end(url: str, token: str) -> Progress:
    deadline = Deadline.after(60)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            async with session.get(f"{url}/v1/progress") as answer:
                progress = Progress.model_validate_json(await answer.read())
            if progress.ended is not None:
                return progress
            deadline.check("the driver to end")


async def test_a_driver_stays_until_its_launcher_has_read_how_it_ended(tmp_path: Path) -> None:
    async with ended_driver(tmp_path, "secret") as (driving, url):
        progress = await told_end(url, "secret")
        assert progress.ended is ExitCode.INVALID
        assert str(tmp_path / "model") in progress.message
        assert await driving is ExitCode.INVALID


async def test_a_signal_ends_a_driver_that_waits_for_its_launcher(tmp_path: Path) -> None:
    async with ended_driver(tmp_path, "secret") as (driving, _):
        os.kill(os.getpid(), signal.SIGTERM)
        assert await driving in {ExitCode.INVALID, ExitCode.INTERRUPTED}


async def test_a_driver_without_a_remote_launcher_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / REQUEST_FILE).write_text(request_without_a_model(tmp_path).model_dump_json(by_alias=True))
    async with asyncio.timeout(20):
        assert await drive(tmp_path, None, server()) is ExitCode.INVALID
    assert not (tmp_path / ADDRESS_FILE).exists()


def test_what_the_driver_starts_does_not_inherit_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_DRIVER_HOST", "0.0.0.0")  # noqa: S104  nothing is bound
    monkeypatch.setenv("SEATRIAL_DRIVER_PORT", "8090")
    monkeypatch.setenv("SEATRIAL_DRIVER_TOKEN", "secret")
    assert ServerSettings.from_environment() == ServerSettings("0.0.0.0", 8090, "secret")  # noqa: S104
    assert "SEATRIAL_DRIVER_TOKEN" not in os.environ
    assert ServerSettings.from_environment().token is None


async def test_the_run_folder_keeps_a_request_that_came_from_elsewhere(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(request_without_a_model(tmp_path).model_dump_json(by_alias=True))
    await drive(tmp_path / "run", request, server())
    assert (tmp_path / "run" / REQUEST_FILE).read_text() == request.read_text()


@pytest.mark.parametrize("content", [None, "{", '{"run": {}}'])
async def test_a_request_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    request = tmp_path / "request.json"
    if content is not None:
        request.write_text(content)
    with pytest.raises(InvalidInputError, match=str(request)):
        await drive(tmp_path / "run", request, server())
