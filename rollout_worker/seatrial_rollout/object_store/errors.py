"""What can go wrong with an object store, told by what the caller does next.

TransientError
└── StoreUnavailableError   the store was asked again until patience ran out
SeatrialError
├── ObjectMissingError      there is no such object
└── ObjectTakenError        there is one already

boto3's own errors end here: `translated` makes each one the error that says whether asking again can help.
"""

from http import HTTPStatus

from boto3.exceptions import Boto3Error
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from seatrial_api.errors import CorruptionError, InvalidInputError, SeatrialError, TransientError

BOTO_ERRORS = (BotoCoreError, ClientError, Boto3Error)
"""All that boto3 raises about a store."""

_PASSING = frozenset(
    {"ConditionalRequestConflict", "ExpiredToken", "RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling"}
)
"""Refusals that pass: credentials are fetched anew, clocks are set, a store takes a breath."""
_MISSING = frozenset({"NoSuchKey", "404"})
_NO_ACCESS = "let these credentials list, read, write and delete below it"
_WAYS_OUT = {
    "NoSuchBucket": "make the bucket, or correct the URI",
    "AccessDenied": _NO_ACCESS,
    "403": _NO_ACCESS,
    "InvalidAccessKeyId": "correct the access key",
    "SignatureDoesNotMatch": "correct the secret key",
    "PermanentRedirect": "set AWS_REGION to the bucket's region",
}
_NO_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role; in a cluster, name a secret"


class StoreUnavailableError(TransientError):
    """The store was asked again until patience ran out."""


class ObjectMissingError(SeatrialError):
    """There is no such object."""


class ObjectTakenError(SeatrialError):
    """There is such an object already."""


def translated(error: Exception, where: str) -> SeatrialError:
    """An error of boto3 as one of ours.

    Args:
        error: What boto3 raised.
        where: The object or the prefix, as a URI.
    """
    match error:
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError() | ProfileNotFound():
            return InvalidInputError(f"{where}: {error}; {_NO_CREDENTIALS}")
        case FlexibleChecksumError():
            return CorruptionError(f"{where}: the object is not what its checksum says ({error})")
        case ClientError():
            return _refusal(error, where)
        case Boto3Error(__context__=ClientError() as cause):  # what moves big files wraps what the store said
            return _refusal(cause, where)
        case _:
            return TransientError(f"{where}: {error}")


def _refusal(error: ClientError, where: str) -> SeatrialError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _MISSING:
        return ObjectMissingError(f"{where}: there is no such object")
    if status == HTTPStatus.PRECONDITION_FAILED:
        return ObjectTakenError(f"{where}: there is such an object already")
    is_broken = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    if is_broken or code in _PASSING or status in {0, HTTPStatus.TOO_MANY_REQUESTS}:
        return TransientError(f"{where}: {error}")
    way_out = _WAYS_OUT.get(code, "correct the URI, the endpoint or the credentials")
    return InvalidInputError(f"{where}: {error}; {way_out}")
