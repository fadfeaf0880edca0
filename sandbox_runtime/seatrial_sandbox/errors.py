"""What can go wrong with a sandbox, by what the caller does next.

SandboxError
├── SandboxStartError      it did not come up; try again, or look at the reason
├── SandboxDiedError       it is gone with everything in it; start another
├── SandboxDiskFullError   no room is left where sandboxes live
├── CommandTimeoutError    a command ran too long and was killed; the sandbox lives
├── SandboxPathError       a path that may not be read or written; the sandbox lives
├── SandboxAccessError     the token does not allow the call; get another one
├── SandboxStateError      the sandbox does not have what the call builds upon; begin anew
├── SandboxLimitError      more than one call may ask for; ask for less
└── SandboxDataError       what arrived is not what was sent; send it again
"""

from seatrial_api.errors import SeatrialError, TransientError

ERROR_KEY = "seatrial-error"
"""Metadata of a failed call with the class of its error."""


class SandboxError(SeatrialError):
    """Root of what goes wrong with sandboxes."""


class SandboxStartError(SandboxError, TransientError):
    """The sandbox did not come up."""


class SandboxDiedError(SandboxError, TransientError):
    """The sandbox ended while it was in use; whatever was under way has no result."""


class SandboxDiskFullError(SandboxError, TransientError):
    """No room is left on the disk that holds the sandbox."""


class CommandTimeoutError(SandboxError):
    """A command was killed because its time was up."""

    def __init__(self, *, command: str, seconds: float) -> None:
        self.command = command
        self.seconds = seconds
        shown = command if len(command) <= 200 else command[:200] + "..."
        super().__init__(f"killed after {seconds:g} s: {shown}")


class SandboxPathError(SandboxError):
    """A path that leads out of what may be read or written."""


class SandboxAccessError(SandboxError):
    """A token that is not valid, or not for this call, or not in this phase."""


class SandboxStateError(SandboxError):
    """An upload, a snapshot or a version that the sandbox does not know, or knows otherwise."""


class SandboxLimitError(SandboxError):
    """More bytes, files or depth than one call may have."""


class SandboxDataError(SandboxError, TransientError):
    """A checksum that differs, or an archive that cannot be read."""
