"""The service's errors, told in our own words."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import tinker

from seatrial_api.errors import InvalidInputError, TransientError

_REFUSALS = (
    tinker.AuthenticationError,
    tinker.BadRequestError,
    tinker.BillingError,
    tinker.NotFoundError,
    tinker.PermissionDeniedError,
    tinker.UnprocessableEntityError,
)

_DOWNLOAD_SECONDS = 600.0


@contextmanager
def asking(purpose: str) -> Iterator[None]:
    """Translate what the SDK raises in a block; it has retried already what may succeed later.

    Args:
        purpose: What the service was asked to do: `train Qwen/Qwen3-8B`.

    Raises:
        InvalidInputError: the service refused: the key, the model or the request.
        TransientError: the service could not be reached, or failed.
    """
    try:
        yield
    except tinker.TinkerError as exc:
        is_refusal = isinstance(exc, _REFUSALS) or _blames_request(exc)
        kind = InvalidInputError if is_refusal or _lacks_key(exc) else TransientError
        raise kind(f"trainer.backend: the Tinker service did not {purpose}: {exc}") from exc
    except ValueError as exc:  # of a result that cannot be fetched for good
        raise TransientError(f"trainer.backend: the Tinker service did not {purpose}: {exc}") from exc


def download(urls: Mapping[str, str], name: str) -> bytes:
    """One of the files that the service exported.

    Raises:
        InvalidInputError: it is not among them.
        TransientError: it could not be fetched.
    """
    if name not in urls:
        msg = f"trainer.backend: the Tinker service exported no {name}, only {', '.join(urls)}"
        raise InvalidInputError(msg)
    try:
        response = httpx.get(urls[name], timeout=_DOWNLOAD_SECONDS, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as exc:
        raise TransientError(f"trainer.backend: {name} could not be fetched from the Tinker service: {exc}") from exc
    return response.content


def _blames_request(error: tinker.TinkerError) -> bool:
    return isinstance(error, tinker.RequestFailedError) and error.category == "user"


def _lacks_key(error: tinker.TinkerError) -> bool:
    """The SDK has no class for a key that is not set."""
    return type(error) is tinker.TinkerError and "TINKER_API_KEY" in str(error)
