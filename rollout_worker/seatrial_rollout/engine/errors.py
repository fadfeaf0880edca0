"""What an engine or its client raises, by what the caller does next.

EngineError                  no engine could do it now: an infrastructure outcome for a trial
├── RequestRefusedError      the request itself is at fault; no other engine would take it
├── EngineStartError         vLLM did not come up; carries the end of its log
└── WeightUpdateError        the engine does not hold the new weights; it serves nothing until it does
"""

from seatrial_api.errors import TransientError


class EngineError(TransientError):
    """Root of the tree."""


class RequestRefusedError(EngineError):
    """The engine refused the request as invalid."""

    def __init__(self, *, engine_id: str, status: int, detail: str) -> None:
        self.status = status
        super().__init__(f"engine {engine_id} refused the request with HTTP {status}: {detail[:500]}")


class EngineStartError(EngineError):
    """The vLLM process ended, or did not answer before its deadline."""

    def __init__(self, *, engine_id: str, what: str, log_tail: str) -> None:
        self.log_tail = log_tail
        super().__init__(f"engine {engine_id}: {what}; its log ends with:\n{log_tail}")


class WeightUpdateError(EngineError):
    """An engine could not take over a weight version."""

    def __init__(self, *, engine_id: str, version: int, detail: str) -> None:
        self.version = version
        super().__init__(f"engine {engine_id} could not load weight version {version}: {detail[:500]}")
