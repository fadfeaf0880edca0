"""What every way of weight synchronisation keeps."""

from dataclasses import dataclass
from typing import Protocol

from seatrial_api.errors import TransientError


class WeightSyncError(TransientError):
    """No engine holds the version that was to be published, or engines hold different weights under it."""

    def __init__(self, *, version: int, failures: list[str]) -> None:
        self.version = version
        self.failures = failures
        detail = "; ".join(failures) or "there is no engine"
        super().__init__(f"weight version {version} was not published ({detail})")


@dataclass(frozen=True, slots=True)
class SyncReport:
    """One published version."""

    seconds: float
    """From the call until every engine that could take the version serves it."""
    paused_seconds: float
    """Longest time for which an engine generated nothing."""
    bytes: int
    """Size of the weights, once."""
    num_engines: int = 0
    """Engines that serve the version."""
    failures: tuple[str, ...] = ()
    """Why each of the others does not; they admit nothing until they do."""


class WeightSync(Protocol):
    """Brings the policy's weights of this moment to the engines."""

    async def publish(self, version: int) -> SyncReport:
        """Make engines generate with the policy's current weights, labelled `version`, and with nothing else.

        Requests in flight go on under the new weights. One call at a time, between two optimiser steps.

        Raises:
            WeightSyncError: no engine could take them before the deadline.
        """
        ...

    async def repair(self) -> int:
        """Bring the published version to engines that came back without it, and count them.

        To be called now and then while the policy holds exactly the weights that were published last: an engine that
        came back is of no use until then. Never raises for an engine that is lost again.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and files. Idempotent."""
        ...
