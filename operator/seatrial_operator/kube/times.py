"""Wall time, as the API server writes it."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time of day, cut to seconds, which is all that conditions keep."""
    return datetime.now(UTC).replace(microsecond=0)  # noqa: TID251  the edge; plans get the time as an argument


def micro_time(moment: datetime) -> str:
    """As Leases and Events have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_time(moment: datetime) -> str:
    """As all other objects have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
