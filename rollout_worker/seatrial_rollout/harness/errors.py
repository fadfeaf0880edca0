"""What ends a trial without the model's doing, by who is to blame; each error carries the trial's outcome.

HarnessError
├── ToolServerError      an MCP server was missing, hung, died or broke its protocol
│   └── CallLostError    it died under a call that may have run, and that may not run twice
├── EngineFailedError    no engine could produce the turn
├── SandboxFailedError   the sandbox died, or could not take what the harness gave it
└── ReplayDivergedError  the sandbox died, and the one that took its place is not what it was
"""

from typing import ClassVar

from seatrial_api.errors import SeatrialError
from seatrial_api.outcome import Outcome


class HarnessError(SeatrialError):
    """Root of the tree; raised by itself for a fault of the harness."""

    outcome: ClassVar[Outcome] = Outcome.HARNESS_FAILED


class ToolServerError(HarnessError):
    """An MCP server cannot be used any more."""

    outcome = Outcome.TOOL_SERVER_FAILED

    def __init__(self, *, server: str, problem: str) -> None:
        self.server = server
        super().__init__(f"MCP server {server}: {problem}")


class CallLostError(ToolServerError):
    """A server died under a call that may have run, and that may not run twice."""


class EngineFailedError(HarnessError):
    """No inference engine could produce the turn, after fail-over."""

    outcome = Outcome.ENGINE_FAILED


class SandboxFailedError(HarnessError):
    """The sandbox died, or could not take what the harness gave it."""

    outcome = Outcome.SANDBOX_FAILED


class ReplayDivergedError(HarnessError):
    """The sandbox died, and the one that took its place is not what it was."""

    outcome = Outcome.REPLAY_DIVERGED

    def __init__(self, *, what: str, difference: str) -> None:
        self.what = what
        super().__init__(f"the sandbox died and was restored, and {what} differs: {difference}")
