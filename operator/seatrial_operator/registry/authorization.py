"""Answers to a registry's challenge: a name and a password, or a token that they buy."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from seatrial_operator.registry.challenge import Challenge
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.errors import RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference

TIMEOUT = aiohttp.ClientTimeout(total=20)
"""Of a request that carries little."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a person who is refused can do about it."""

    anonymous: str
    """Without credentials."""
    known: str
    """With some."""

    def to(self, credentials: Credentials | None) -> str:
        """The advice that fits."""
        return self.known if credentials else self.anonymous


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Makes `Authorization` headers for one kind of access."""

    session: aiohttp.ClientSession
    actions: str
    """What is to be done, as scopes name it: `pull`, or `pull,push`."""
    advice: Advice

    async def header(
        self, reference: Reference, credentials: Credentials | None, challenge: Challenge, *, is_tls: bool
    ) -> str:
        """The header that answers a challenge.

        Args:
            reference: The image.
            credentials: Name and password; none to come as nobody.
            challenge: What the registry asks for.
            is_tls: Whether the registry is reached over TLS: then credentials go nowhere else without it.

        Raises:
            UnauthorizedError: the registry wants other credentials, or any.
            RegistryUnavailableError: its token service does not answer as it should.
        """
        match challenge.scheme:
            case "bearer":
                return f"Bearer {await self._token(reference, credentials, challenge, is_tls=is_tls)}"
            case "basic" if credentials is not None:
                return credentials.basic
            case "basic":
                detail = f"it asks for a name and a password; {self.advice.anonymous}"
            case other:
                detail = f"it asks for the unknown scheme {other or 'of an empty WWW-Authenticate header'}"
        raise UnauthorizedError(image=str(reference), detail=detail)

    async def _token(
        self, reference: Reference, credentials: Credentials | None, challenge: Challenge, *, is_tls: bool
    ) -> str:
        realm = challenge.parameters.get("realm", "")
        if not realm.startswith("https://") and is_tls:
            detail = f"its token service {realm or '(none named)'} is not reached over TLS, so credentials stay here"
            raise UnauthorizedError(image=str(reference), detail=detail)
        query = {"scope": challenge.parameters.get("scope", f"repository:{reference.repository}:{self.actions}")}
        if "service" in challenge.parameters:
            query["service"] = challenge.parameters["service"]
        headers = {"Authorization": credentials.basic} if credentials else {}
        async with self.session.get(realm, params=query, headers=headers, timeout=TIMEOUT) as response:
            if response.status in {400, 401, 403}:
                detail = f"its token service answers HTTP {response.status}; {self.advice.to(credentials)}"
                raise UnauthorizedError(image=str(reference), detail=detail)
            if response.status != HTTPStatus.OK:
                detail = f"its token service answers HTTP {response.status}"
                raise RegistryUnavailableError(image=str(reference), detail=detail)
            body: dict[str, Any] = await response.json(content_type=None)
        token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
        if not isinstance(token, str):
            raise RegistryUnavailableError(image=str(reference), detail="its token service answers without a token")
        return token
