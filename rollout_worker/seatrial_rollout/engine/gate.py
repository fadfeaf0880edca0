"""The gate in front of a vLLM server: open while it may generate, and a count of the seconds when it may not."""

import asyncio

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import WaitTimeoutError


class Gate:
    """Closed at first. Requests wait in front of it, and the time that it is closed is never charged to a trial."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._opened = asyncio.Event()
        self._closed_since = clock.now()
        self._closed_before = 0.0
        self.reason = "the engine has not started"
        """Why it is closed, in words."""

    @property
    def is_open(self) -> bool:
        """Whether requests may pass."""
        return self._opened.is_set()

    @property
    def closed_seconds(self) -> float:
        """Seconds that the gate has been closed in all; the difference of two readings is a wait."""
        return self._closed_before + (0.0 if self.is_open else self._clock.now() - self._closed_since)

    def open(self) -> None:
        """Let requests pass."""
        if not self.is_open:
            self._closed_before = self.closed_seconds
            self._opened.set()

    def close(self, reason: str) -> None:
        """Hold requests from now on."""
        self.reason = reason
        if self.is_open:
            self._closed_since = self._clock.now()
            self._opened.clear()

    async def wait_open(self, deadline: Deadline) -> None:
        """Wait until requests may pass.

        Raises:
            WaitTimeoutError: with the reason why the gate is closed.
        """
        try:
            async with asyncio.timeout(deadline.remaining):
                await self._opened.wait()
        except TimeoutError:
            raise WaitTimeoutError(waiting_for=f"the engine: {self.reason}") from None
