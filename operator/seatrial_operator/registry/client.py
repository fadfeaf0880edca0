"""Any registry that speaks the OCI distribution API."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from seatrial_operator.registry.authorization import TIMEOUT, Advice, Authorizer
from seatrial_operator.registry.challenge import Challenge
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.errors import ImageNotFoundError, RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""What a tag may stand for; an index comes first, so that nodes of every architecture find theirs."""

_ADVICE = Advice(
    anonymous="set spec.pullSecret if the image is not public, and check its name",
    known="check the rights of the pull secret's user, and the image's name",
)
_MAX_MANIFEST_BYTES = 4 * 1024**2
"""The largest manifest that registries have to take."""


class RegistryClient:
    """Looks images up; keeps no state but the connections of the session that it is given."""

    def __init__(self, session: aiohttp.ClientSession, plain_http: Collection[str] = ()) -> None:
        """Make a client.

        Args:
            session: Connections; the caller closes it.
            plain_http: Registries without TLS, beside those on this machine.
        """
        self._session = session
        self._authorizer = Authorizer(session, "pull", _ADVICE)
        self._plain_http = frozenset(plain_http)

    async def digest(self, reference: Reference, credentials: Credentials | None = None) -> str:
        """The digest that a reference stands for; of an index, the digest of the index itself.

        Raises:
            ImageNotFoundError: there is no such image.
            UnauthorizedError: the registry wants other credentials, or any.
            RegistryUnavailableError: it does not answer as a registry should; later it may.
        """
        try:
            return await self._digest(reference, credentials)
        except (aiohttp.InvalidURL, UnicodeError) as error:  # the latter for a host name that none can have
            raise ImageNotFoundError(image=str(reference), detail="this is no address of an image") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            detail = str(error) or type(error).__name__
            raise RegistryUnavailableError(image=str(reference), detail=detail) from error

    async def _digest(self, reference: Reference, credentials: Credentials | None) -> str:
        url = f"{self._scheme(reference)}://{reference.api_host}/v2/{reference.repository}/manifests/{reference.wanted}"
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        answer = await self._send("HEAD", url, headers)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            headers["Authorization"] = await self._authorizer.header(
                reference, credentials, answer.challenge, is_tls=self._scheme(reference) == "https"
            )
            answer = await self._send("HEAD", url, headers)
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED or (answer.status == HTTPStatus.OK and not answer.digest):
            answer = await self._send("GET", url, headers)
        _check(answer, reference, _ADVICE.to(credentials))
        return answer.digest or f"sha256:{hashlib.sha256(answer.body).hexdigest()}"

    async def _send(self, method: str, url: str, headers: dict[str, str]) -> "_Answer":
        async with self._session.request(method, url, headers=headers, timeout=TIMEOUT) as response:
            body = await _read(response) if method == "GET" else b""
            return _Answer(
                status=response.status,
                digest=response.headers.get("Docker-Content-Digest", ""),
                challenge=Challenge.parse(response.headers.get("WWW-Authenticate", "")),
                retry_after=response.headers.get("Retry-After", ""),
                body=body,
            )

    def _scheme(self, reference: Reference) -> str:
        return "http" if reference.is_loopback or reference.registry in self._plain_http else "https"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What counts of an HTTP answer."""

    status: int
    digest: str
    challenge: Challenge
    retry_after: str
    body: bytes


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_MANIFEST_BYTES:
            raise aiohttp.ClientPayloadError(f"a manifest of more than {_MAX_MANIFEST_BYTES} bytes")
    return bytes(body)


def _check(answer: _Answer, reference: Reference, advice: str) -> None:
    """Translate what is not the manifest."""
    image = str(reference)
    match answer.status:
        case HTTPStatus.OK:
            return
        case HTTPStatus.NOT_FOUND:
            raise ImageNotFoundError(image=image)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            # Registries that hide what one may not see answer so for an image that does not exist, too.
            detail = f"HTTP {answer.status}; {advice}"
            raise UnauthorizedError(image=image, detail=detail)
        case status:
            retry_after = float(answer.retry_after) if answer.retry_after.isdecimal() else None
            raise RegistryUnavailableError(image=image, detail=f"HTTP {status}", retry_after_seconds=retry_after)
