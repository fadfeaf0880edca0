"""The root of every error that Seatrial raises, by what the caller does next.

SeatrialError
├── InvalidInputError      the user has to change something; exit 2
├── TransientError         the same call may succeed later
│   └── WaitTimeoutError   a wait reached its deadline; says what it waited for
└── CorruptionError        stored data cannot be trusted; use an older copy
"""

from typing import Any, override


class SeatrialError(Exception):
    """Root of the tree. Errors travel between processes, whatever their constructors take."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[SeatrialError], args: tuple[Any, ...], state: dict[str, Any]) -> SeatrialError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidInputError(SeatrialError):
    """The user has to change something: names the field, the value, the bound and the way out."""


class TransientError(SeatrialError):
    """The same call may succeed later."""


class WaitTimeoutError(TransientError):
    """A wait reached its deadline."""

    def __init__(self, *, waiting_for: str, seconds: float | None = None) -> None:
        self.waiting_for = waiting_for
        self.seconds = seconds
        after = "" if seconds is None else f" after {seconds:.1f} s"
        super().__init__(f"gave up{after} waiting for {waiting_for}")


class CorruptionError(SeatrialError):
    """Stored data cannot be trusted."""
