"""What a client of the proxy is refused with; each API says it in words of its own.

RequestError                 carries the HTTP status, and what OpenAI calls it
├── InvalidRequestError      400: the request cannot be answered as it is
│   └── ContextOverflowError 400: the conversation leaves no room for a turn
├── UnknownKeyError          401: the key names no trial
├── BudgetSpentError         403: the trial has asked as often as it may; asking again is of no use
└── NoEngineError            503: no engine could answer; another attempt may succeed
"""

from typing import ClassVar

from seatrial_api.errors import SeatrialError


class RequestError(SeatrialError):
    """Root of the tree; raised by itself for a fault of ours."""

    status: ClassVar[int] = 500
    code: ClassVar[str | None] = None

    def __init__(self, problem: str, *, param: str | None = None) -> None:
        self.param = param
        """The field at fault, if one is."""
        super().__init__(problem)


class InvalidRequestError(RequestError):
    """The request cannot be answered as it is."""

    status = 400
    code = "invalid_value"


class ContextOverflowError(InvalidRequestError):
    """The conversation leaves no room for a turn."""

    code = "context_length_exceeded"

    def __init__(self, *, num_tokens: int, limit: int) -> None:
        self.num_tokens = num_tokens
        self.limit = limit
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {num_tokens} "
            "tokens. Please reduce the length of the messages.",
            param="messages",
        )


class UnknownKeyError(RequestError):
    """The key names no trial."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("the API key names no trial that is under way")


class BudgetSpentError(RequestError):
    """The trial has asked as often as it may."""

    status = 403
    code = "request_limit_reached"


class NoEngineError(RequestError):
    """No engine could answer."""

    status = 503
    code = "server_error"
