"""Clocks that tests hold."""

from dataclasses import dataclass
from typing import override

from seatrial_api.clock import Clock


@dataclass
class HeldClock(Clock):
    """Stands still until it is moved."""

    at: float = 0.0

    @override
    def now(self) -> float:
        return self.at

    @override
    async def sleep(self, seconds: float) -> None:
        self.at += seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds
