from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
import pytest

from seatrial_api.driver_request import LiveSettings
from seatrial_api.errors import InvalidInputError
from seatrial_api.playbook import ExitCode
from seatrial_api.progress import Progress
from seatrial_api.spec.operations import GuardsSpec
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.observability.server import Remote, serve

SETTINGS = LiveSettings(concurrency=3, guards=GuardsSpec())


@dataclass
class NotedDriver:
    """Takes notes of what a launcher asks for."""

    progress: Progress = field(default_factory=lambda: Progress(run="run"))
    bodies: list[bytes] = field(default_factory=list)
    stops: int = 0
    told: int = 0

    def change(self, body: bytes) -> LiveSettings:
        """Settings came."""
        self.bodies.append(body)
        if body == b"nonsense":
            raise InvalidInputError("concurrency: is missing")
        return SETTINGS

    def stop(self) -> None:
        """A stop was asked for."""
        self.stops += 1

    def note_told(self) -> None:
        """The launcher knows the end."""
        self.told += 1


@asynccontextmanager
async def launcher_of(
    driver: NotedDriver, *, shows: str | None = "secret", wanted: str | None = "secret"
) -> AsyncIterator[aiohttp.ClientSession]:
    """A launcher that shows a token to a driver that wants one."""
    remote = Remote(wanted, driver.change, driver.stop, driver.note_told) if wanted else None
    headers = {"Authorization": f"Bearer {shows}"} if shows else {}
    registry = RunMetrics("default", "run").registry
    async with (
        serve("127.0.0.1", 0, lambda: driver.progress, registry, remote) as url,
        aiohttp.ClientSession(url, headers=headers) as session,
    ):
        yield session


@pytest.mark.parametrize("shows", [None, "", "secre", "secret2", "s\u00e9cret"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/progress"), ("PUT", "/v1/settings"), ("POST", "/v1/stop"), ("GET", "/v1/else")]
)
async def test_nothing_below_v1_is_done_or_told_without_the_token(method: str, path: str, shows: str | None) -> None:
    driver = NotedDriver(progress=Progress(run="run", ended=ExitCode.PASSED))
    async with launcher_of(driver, shows=shows) as session, session.request(method, path, data=b"{}") as answer:
        assert answer.status == HTTPStatus.UNAUTHORIZED
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "token" in (await answer.json())["error"]
    assert driver == NotedDriver(progress=driver.progress)


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
async def test_metrics_and_health_need_no_token(path: str) -> None:
    async with launcher_of(NotedDriver(), shows=None) as session, session.get(path) as answer:
        assert answer.status == HTTPStatus.OK


async def test_the_token_opens_the_progress() -> None:
    async with launcher_of(NotedDriver()) as session, session.get("/v1/progress") as answer:
        assert Progress.model_validate_json(await answer.read()) == Progress(run="run")


async def test_settings_are_answered_with_those_in_force() -> None:
    driver = NotedDriver()
    async with launcher_of(driver) as session, session.put("/v1/settings", data=b"{}") as answer:
        assert answer.status == HTTPStatus.OK
        assert LiveSettings.model_validate_json(await answer.read()) == SETTINGS
    assert driver.bodies == [b"{}"]


async def test_settings_that_cannot_be_taken_are_answered_with_what_is_wrong() -> None:
    async with launcher_of(NotedDriver()) as session, session.put("/v1/settings", data=b"nonsense") as answer:
        assert answer.status == HTTPStatus.BAD_REQUEST
        assert await answer.json() == {"error": "concurrency: is missing"}


async def test_a_stop_is_passed_on() -> None:
    driver = NotedDriver()
    async with launcher_of(driver) as session, session.post("/v1/stop") as answer:
        assert answer.status == HTTPStatus.ACCEPTED
    assert driver.stops == 1


async def test_only_a_progress_that_tells_the_end_counts_as_told() -> None:
    driver = NotedDriver()
    async with launcher_of(driver) as session:
        async with session.get("/v1/progress"):
            assert driver.told == 0
        driver.progress = Progress(run="run", ended=ExitCode.STOPPED)
        async with session.get("/v1/progress") as answer:
            assert Progress.model_validate_json(await answer.read()).ended is ExitCode.STOPPED
    assert driver.told == 1


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/settings"), ("POST", "/v1/stop")])
async def test_a_driver_without_a_token_cannot_be_changed_and_is_read_by_anybody(method: str, path: str) -> None:
    driver = NotedDriver()
    async with launcher_of(driver, shows=None, wanted=None) as session:
        async with session.request(method, path, data=b"{}") as answer:
            assert answer.status == HTTPStatus.NOT_FOUND
        async with session.get("/v1/progress") as answer:
            assert answer.status == HTTPStatus.OK
    assert driver == NotedDriver()
