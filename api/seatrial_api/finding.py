"""What a sandbox's audit tells of an agent."""

from enum import StrEnum

from seatrial_api.base import ApiModel


class FindingKind(StrEnum):
    """What is remarkable."""

    REFUSED = "Refused"
    """A call to the sandbox that was denied: with a wrong token, or of another phase."""
    TAMPERING = "Tampering"
    """Something in a place of the verifier's or of a tool server's; undone."""
    LEFT_RUNNING = "LeftRunning"
    """Processes that were to outlive the agent; ended."""
    EXECUTABLE = "Executable"
    """A program: by its permissions or its content."""
    SETUID = "Setuid"
    """A file that asks to run as its owner or group."""
    SECRET = "Secret"  # noqa: S105  a kind of finding
    """Text that looks like a key or password."""
    SPECIAL_FILE = "SpecialFile"
    """A socket, a pipe or a device."""
    OUTWARD_LINK = "OutwardLink"
    """A link that leads out of what the agent may write."""
    LARGE_FILE = "LargeFile"
    """A file of 100 MiB or more."""
    DISGUISED = "Disguised"
    """Content that is not what the name's ending says."""

    @property
    def is_act(self) -> bool:
        """Whether it is something that was done, and refused or undone; the others are files that were written."""
        return self in {FindingKind.REFUSED, FindingKind.TAMPERING, FindingKind.LEFT_RUNNING}


class Finding(ApiModel):
    """One remarkable thing."""

    kind: FindingKind
    """What it is."""
    path: str = ""
    """Absolute path in the sandbox; empty if it is no file."""
    detail: str = ""
    """For a person; never holds a secret itself."""
