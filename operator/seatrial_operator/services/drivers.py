"""Requests to the drivers of runs."""

from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import structlog
from pydantic import ValidationError

from seatrial_api.driver_request import LiveSettings
from seatrial_api.errors import TransientError
from seatrial_api.progress import Progress

log = structlog.get_logger(__name__)


class DriverSilentError(TransientError):
    """A driver did not answer, or not as a driver does."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where a driver answers, and to whom."""

    url: str
    token: str


@dataclass
class DriverClient:
    """Asks drivers; each request has a bound in time."""

    session: aiohttp.ClientSession
    timeout_seconds: float

    async def progress(self, address: DriverAddress) -> Progress:
        """How far the driver has come.

        Raises:
            DriverSilentError: if it does not tell.
        """
        body = await self._send("GET", address, "/v1/progress")
        try:
            return Progress.model_validate_json(body, extra="ignore")  # a newer driver may tell more
        except ValidationError as exc:
            raise DriverSilentError(f"{address.url}/v1/progress holds no progress: {exc}") from exc

    async def put_settings(self, address: DriverAddress, settings: LiveSettings) -> None:
        """Have the driver take over live settings.

        Raises:
            DriverSilentError: if it does not say that it did.
        """
        await self._send("PUT", address, "/v1/settings", settings.model_dump_json(by_alias=True))

    async def stop(self, address: DriverAddress) -> None:
        """Have the driver write a checkpoint and end; asking twice is asking once.

        Raises:
            DriverSilentError: if it does not say that it will.
        """
        await self._send("POST", address, "/v1/stop")

    async def _send(self, method: str, address: DriverAddress, path: str, body: str | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        try:
            async with self.session.request(
                method, address.url + path, headers=headers, data=body, timeout=timeout
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise DriverSilentError(f"{method} {address.url}{path}: {type(exc).__name__} {exc}".rstrip()) from exc
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise DriverSilentError(f"{method} {address.url}{path}: HTTP {answer.status} {content[:200]!r}")
        return content
