"""What the API server said no to, by what the caller does next.

KubeError
├── NotFoundError        the object is not there
├── AlreadyExistsError   the object is there already
├── StaleError           the object changed meanwhile; look again, then decide again
├── ExpiredError         what happened since a version is no longer known; list anew
├── MissingKindError     the API server does not know the kind; what defines it has to be installed
├── RefusedError         the request, or our rights, must change; trying again is no use
│   └── ForbiddenError   we lack the right, or a quota or a policy of the namespace forbids it
└── UnavailableError     the same request may succeed later; it may also have been carried out
"""

import json
from http import HTTPStatus

from seatrial_api.errors import SeatrialError, TransientError


class KubeError(SeatrialError):
    """A request that the API server did not carry out, as far as we know."""

    def __init__(self, *, request: str, detail: str) -> None:
        self.request = request
        self.detail = detail
        super().__init__(f"{request}: {detail}")


class NotFoundError(KubeError):
    """The object is not there."""


class AlreadyExistsError(KubeError):
    """An object of this name is there already."""


class StaleError(KubeError):
    """The object is not as the request took it to be."""


class ExpiredError(KubeError):
    """What happened since a version is no longer known."""


class MissingKindError(KubeError):
    """The API server does not know a kind that we work with."""


class RefusedError(KubeError):
    """Validation, admission or access control refused the request."""


class ForbiddenError(RefusedError):
    """We lack the right, or a quota or a policy of the namespace forbids it."""


class UnavailableError(KubeError, TransientError):
    """No answer, or one that says to try later."""


_BY_STATUS: dict[int, type[KubeError]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.GONE: ExpiredError,
    HTTPStatus.TOO_MANY_REQUESTS: UnavailableError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    HTTPStatus.UNAUTHORIZED: UnavailableError,
}


def translate(request: str, status: int, body: bytes | str | None) -> KubeError:
    """The error for an answer with an HTTP status of 400 and above."""
    reason, detail = _reason_of(body)
    return _kind_of(status, reason)(request=request, detail=f"HTTP {status} {detail}".strip())


def _kind_of(status: int, reason: str) -> type[KubeError]:
    match status:
        case HTTPStatus.CONFLICT:
            return AlreadyExistsError if reason == "AlreadyExists" else StaleError
        case _ if status in _BY_STATUS:
            return _BY_STATUS[status]
        case _:
            return RefusedError if status < HTTPStatus.INTERNAL_SERVER_ERROR else UnavailableError


def _reason_of(body: bytes | str | None) -> tuple[str, str]:
    """Reason and message of the Status object that the API server answers with; proxies answer with anything."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        status = json.loads(text)
        return str(status.get("reason", "")), str(status.get("message", ""))
    except (ValueError, AttributeError):
        return "", text[:200]
