"""Requests to one repository of a registry: authorised, repeated while it is worth it, and told in a sentence."""

import json
from collections.abc import AsyncIterable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import aiohttp
from yarl import URL

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.authorization import Advice, Authorizer
from seatrial_operator.registry.challenge import Challenge
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.errors import RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference

ADVICE = Advice(
    anonymous="log in with `docker login`, or give --username and --password-stdin",
    known="check name and password, and whether they may push to this repository",
)
TRIES = 6
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
_SILENCE = aiohttp.ClientTimeout(total=None, sock_connect=20, sock_read=120)
"""An upload may take long, but something has to move."""

type Body = Callable[[], bytes | AsyncIterable[bytes]]
"""Makes the body of a request, for each try anew."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What counts of an HTTP answer."""

    status: int
    headers: Mapping[str, str]
    url: URL


@dataclass
class RegistrySession:
    """A repository, as one who may push sees it."""

    http: aiohttp.ClientSession
    reference: Reference
    credentials: Credentials | None
    is_plain: bool = False
    """Whether the registry is spoken to without TLS."""
    clock: Clock = SYSTEM_CLOCK
    _authorization: str = field(default="", repr=False)

    @property
    def base(self) -> URL:
        """Where the repository's API begins."""
        scheme = "http" if self.is_plain or self.reference.is_loopback else "https"
        return URL(f"{scheme}://{self.reference.api_host}/v2/{self.reference.repository}/")

    async def request(
        self,
        method: str,
        url: URL,
        expected: Collection[int],
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: Body = bytes,
        tries: int = TRIES,
    ) -> Answer:
        """Make a request until the answer is an expected one, with pauses between tries.

        Raises:
            InvalidInputError: if the user has to change something.
            UnauthorizedError: if that is credentials or rights.
            RegistryUnavailableError: if the registry cannot be reached, or fails again and again.
        """
        pause, failure = 0.0, "it does not accept the credentials that it gave out"
        for _ in range(tries):
            await self.clock.sleep(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * pause))
            try:
                async with self._send(method, url, headers, body) as response:
                    if response.status == HTTPStatus.UNAUTHORIZED and await self._authorize(response):
                        pause = 0.0
                        continue
                    if response.status in expected:
                        return Answer(response.status, response.headers, url)
                    failure = await self._failure(method, response)
                    wanted = response.headers.get("Retry-After", "")
                    pause = min(_LONGEST_PAUSE_SECONDS, float(wanted)) if wanted.isdecimal() else pause
            except aiohttp.ClientSSLError as error:
                raise InvalidInputError(
                    f"{self.reference.registry} is not reached over TLS: {error}; for a registry without it give"
                    " --plain-http, for a certificate of your own set SSL_CERT_FILE"
                ) from error
            except (aiohttp.InvalidURL, UnicodeError) as error:
                raise InvalidInputError(f"{self.reference} is no address of an image") from error
            except (aiohttp.ClientError, OSError) as error:
                failure = str(error) or type(error).__name__
        raise RegistryUnavailableError(image=str(self.reference), detail=failure)

    def _send(self, method: str, url: URL, headers: Mapping[str, str], body: Body) -> Any:
        is_ours = url.host == self.base.host and url.port == self.base.port  # a store elsewhere needs no credentials
        own = {"Authorization": self._authorization} if self._authorization and is_ours else {}
        sent = {**headers, **own}
        return self.http.request(
            method, url, headers=sent, data=body() or None, timeout=_SILENCE, allow_redirects=False
        )

    async def _authorize(self, response: aiohttp.ClientResponse) -> bool:
        """Get a header that answers the challenge; whether it is another than the one that was refused."""
        challenge = Challenge.parse(response.headers.get("WWW-Authenticate", ""))
        authorizer = Authorizer(self.http, "pull,push", ADVICE)
        is_tls = self.base.scheme == "https"
        header = await authorizer.header(self.reference, self.credentials, challenge, is_tls=is_tls)
        is_new, self._authorization = header != self._authorization, header
        return is_new

    async def _failure(self, method: str, response: aiohttp.ClientResponse) -> str:
        """Why a request failed that may be tried again.

        Raises:
            SeatrialError: if trying again is of no use.
        """
        told = f"HTTP {response.status}{await _errors(response)}"
        match response.status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                detail = f"{told}; {ADVICE.to(self.credentials)}"
                raise UnauthorizedError(image=str(self.reference), detail=detail)
            case HTTPStatus.NOT_FOUND:
                name = self.reference.repository
                raise InvalidInputError(
                    f"{self.reference.registry} has no repository {name} ({told}); correct the name, or create it (on"
                    f" ECR: aws ecr create-repository --repository-name {name})"
                )
            case HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.TOO_MANY_REQUESTS:
                return told
            case status if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise InvalidInputError(f"{self.reference.registry} refuses {method} {response.url.path}: {told}")
            case _:
                return told


async def _errors(response: aiohttp.ClientResponse) -> str:
    """What a registry says in its errors; empty if it says nothing."""
    try:
        told = json.loads(await response.read())["errors"]
        return "".join(f", {one.get('code', '')}: {one.get('message', '')}" for one in told)
    except (ValueError, KeyError, TypeError, AttributeError, aiohttp.ClientError):
        return ""
