"""Amazon ECR by its own API, with the rights of the operator's pod: digests, and the 12-hour tokens that nodes need."""

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from seatrial_operator.registry.client import MANIFEST_TYPES
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.errors import ImageNotFoundError, RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference

_HOST = re.compile(  # the hosts that kubelet's own ECR provider knows
    r"^(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9][a-z0-9-]*)\."
    r"(?:amazonaws\.com(?:\.cn)?|on\.(?:aws|amazonwebservices\.com\.cn)|sc2s\.sgov\.gov|c2s\.ic\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)$"
)
_REFUSALS = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "UnrecognizedClientException",
    }
)
_ABSENCES = frozenset({"ImageNotFound", "ImageNotFoundException", "RepositoryNotFound", "RepositoryNotFoundException"})


@dataclass(frozen=True, slots=True)
class EcrRegistry:
    """One account's registry in one region."""

    host: str
    account: str
    region: str

    @classmethod
    def of(cls, reference: Reference) -> Self | None:
        """The ECR registry of an image; none if the image lies elsewhere."""
        found = _HOST.match(reference.registry)
        return cls(reference.registry, found["account"], found["region"]) if found else None


@dataclass(frozen=True, slots=True)
class EcrToken:
    """Credentials that expire."""

    credentials: Credentials
    expires_at: datetime
    """In UTC."""


class EcrClient:
    """Asks ECR; boto3 blocks, so every call runs in a thread.

    boto3 is imported with the first ECR image only: it would be a fifth of the operator's memory elsewhere. Its own
    settings hold, as for the AWS command line: the pod's role, `AWS_ENDPOINT_URL_ECR`, and so on.
    """

    def __init__(self, make_client: Callable[[str], Any] | None = None) -> None:
        """Make a client.

        Args:
            make_client: From a region to boto3's ECR client.
        """
        self._make_client = make_client or _boto3_client
        self._clients: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    async def digest(self, registry: EcrRegistry, reference: Reference) -> str:
        """The digest that a reference stands for; needs only the right to pull (`ecr:BatchGetImage`).

        Raises:
            ImageNotFoundError: there is no such image or repository.
            UnauthorizedError: the operator's role may not read it, or there is no role.
            RegistryUnavailableError: ECR does not answer.
        """
        image_id = {"imageDigest": reference.digest} if reference.digest else {"imageTag": reference.wanted}
        answer = await self._call(
            registry,
            str(reference),
            "batch_get_image",
            registryId=registry.account,
            repositoryName=reference.repository,
            imageIds=[image_id],
            acceptedMediaTypes=list(MANIFEST_TYPES),
        )
        for image in answer.get("images", []):
            digest: str = image["imageId"]["imageDigest"]
            return digest
        failures = "; ".join(failure.get("failureReason", "") for failure in answer.get("failures", []))
        raise ImageNotFoundError(image=str(reference), detail=failures)

    async def token(self, registry: EcrRegistry) -> EcrToken:
        """A new token for all that the operator's role may pull from a registry.

        Raises:
            UnauthorizedError: the operator's role may not have one, or there is no role.
            RegistryUnavailableError: ECR does not answer.
        """
        answer = await self._call(registry, registry.host, "get_authorization_token", registryIds=[registry.account])
        data: Mapping[str, Any] = answer["authorizationData"][0]
        username, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
        return EcrToken(Credentials(username, password), data["expiresAt"].astimezone(UTC))

    async def _call(self, registry: EcrRegistry, image: str, method: str, /, **arguments: Any) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  see the class

        try:
            client = await self._client(registry.region)
            answer: Mapping[str, Any] = await asyncio.to_thread(getattr(client, method), **arguments)
        except ClientError as error:
            raise _translated(error.response.get("Error", {}), image) from error
        except BotoCoreError as error:
            if "redential" in type(error).__name__ or "redential" in str(error):  # NoCredentialsError and its kin
                raise UnauthorizedError(image=image, detail=f"{error}; give the operator's pod an AWS role") from error
            raise RegistryUnavailableError(image=image, detail=str(error)) from error
        return answer

    async def _client(self, region: str) -> Any:
        async with self._lock:  # one session makes one client after the other: it is not safe for threads
            if region not in self._clients:
                self._clients[region] = await asyncio.to_thread(self._make_client, region)
            return self._clients[region]


def _translated(error: Mapping[str, str], image: str) -> Exception:
    code, detail = error.get("Code", ""), error.get("Message", "")
    if code in _ABSENCES:
        return ImageNotFoundError(image=image, detail=detail)
    if code in _REFUSALS:
        detail = f"{code}: {detail}; let the operator's role pull from this repository"
        return UnauthorizedError(image=image, detail=detail)
    return RegistryUnavailableError(image=image, detail=f"{code}: {detail}")


def _boto3_client(region: str) -> Any:
    import boto3  # noqa: PLC0415  see the class
    from botocore.config import Config  # noqa: PLC0415  see the class

    settings = Config(connect_timeout=5, read_timeout=15, retries={"mode": "standard", "max_attempts": 3})
    return boto3.Session().client("ecr", region_name=region, config=settings)
