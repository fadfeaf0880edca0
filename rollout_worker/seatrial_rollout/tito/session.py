"""A conversation with the policy: tokens in, tokens out, and a log that holds each of them once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import SeatrialError
from seatrial_api.spec.harness import HarnessLimits, Sampling
from seatrial_api.trajectory import GivenSpan, TokenSequence
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.continuation import (
    Continuation,
    Conversation,
    History,
    continue_with,
    given_span,
    opening_span,
    said_in,
)
from seatrial_rollout.tito.log import Span, TokenLog
from seatrial_rollout.tito.parsed import ParsedTurn
from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.template import ChatTemplate, Message, ToolSchema


class GeneratesTokens(Protocol):
    """What a session needs of an inference engine."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue a token prompt."""
        ...


class GenerationBrokenError(SeatrialError):
    """An engine answered with something that cannot be a turn."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One turn as the engine made it and as the parsers read it."""

    span: Span
    text: str
    """The sampled tokens as text, special tokens kept."""
    parsed: ParsedTurn
    finish_reason: str
    """`stop` or `length`."""
    engine_seconds: float
    waited_seconds: float
    """Time in which the engine made no progress for reasons of ours."""
    num_prompt_tokens: int
    num_cached_tokens: int


class Session:
    """One conversation; `start`, then `turn` and `observe` in alternation."""

    def __init__(
        self,
        policy: Policy,
        engine: GeneratesTokens,
        sampling: Sampling,
        limits: HarnessLimits,
        history: History = "Keep",
        *,
        trial_id: str = "",
    ) -> None:
        self._template = ChatTemplate.load(policy.model_path)
        self._tool_call_format = policy.tool_call_format
        self.context_length = policy.context_length
        """Tokens that the conversation may hold."""
        self._engine = engine
        self._sampling = sampling
        self._limits = limits
        self._history = history
        self._trial_id = trial_id
        self._log = TokenLog()
        self._parser = TurnParser.of(self._template, policy.tool_call_format, with_tools=False)
        self._messages: list[Message] = []
        self._tools: list[ToolSchema] = []
        self._given: list[GivenSpan] = []
        self._sampled: list[Span] = []
        self._prompt = ""
        self._prepared: Continuation | None = None
        self._is_spoken = False

    @property
    def num_tokens(self) -> int:
        """Tokens in the sequence that the next turn continues."""
        return self._log.num_tokens

    @property
    def room(self) -> int:
        """Tokens that the context still has room for."""
        return self.context_length - self._log.num_tokens

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> None:
        """Render a conversation's beginning, up to where the policy is to speak; another is a sequence of its own.

        Raises:
            InvalidInputError: The template refuses the messages or tools, or writes tool calls in no known format.
        """
        self._parser = TurnParser.of(self._template, self._tool_call_format, with_tools=bool(tools))
        self._messages, self._tools = list(messages), list(tools)
        self._prepared, self._is_spoken = None, False
        self._sampled.clear()
        self._prompt = self._template.render(messages, tools, generation_prompt=True)
        self._record_start(self._log.start(self._template.encode(self._prompt)))

    async def turn(self) -> SampledTurn:
        """Let the policy speak, for at most `maxTurnTokens` and as far as the context reaches.

        Raises:
            GenerationBrokenError: The engine gave up on the turn or answered with nothing.
            SeatrialError: Whatever the engine client raises.
        """
        request = GenerationRequest(
            token_ids=self._log.token_ids,
            max_tokens=min(self._limits.max_turn_tokens, self.room),
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            stop_token_ids=sorted(self._template.stop_token_ids),
            routed_from=self._log.num_routed(),
            trial_id=self._trial_id,
        )
        started = SYSTEM_CLOCK.now()
        generation = await self._engine.generate(request)
        seconds = SYSTEM_CLOCK.now() - started
        if generation.finish_reason not in {"stop", "length"} or not generation.token_ids:
            raise GenerationBrokenError(
                f"an engine ended a turn with {generation.finish_reason!r} after {len(generation.token_ids)} tokens"
            )
        return self._read(generation, seconds, num_prompt_tokens=len(request.token_ids))

    def tokens_of(self, messages: Sequence[Message]) -> int:
        """Tokens that the context would grow by if `messages` were observed; negative where history shrinks."""
        continuation = self._prepare(messages)
        kept = self._log.num_tokens if continuation.inherited is None else continuation.inherited
        return kept + len(continuation.token_ids) - self._log.num_tokens

    def observe(self, messages: Sequence[Message]) -> None:
        """Append what the policy gets to see next: tool results, or a user's words.

        Raises:
            InvalidInputError: The template cannot continue with these messages.
        """
        continuation = self._prepare(messages)
        self._prepared, self._is_spoken = None, False
        self._prompt = continuation.prompt
        self._messages.extend(continuation.messages)
        if continuation.inherited is None:
            self._given.append(given_span(self._log.give(continuation.token_ids), continuation.messages))
        else:
            self._record_start(self._log.start(continuation.token_ids, inherited=continuation.inherited))
            self._sampled.clear()

    def sequences(self) -> list[TokenSequence]:
        """The token sequences so far, the main conversation first."""
        return self._log.sequences()

    def given(self) -> list[GivenSpan]:
        """The spans of tokens that the policy was given, with the messages they came from."""
        return list(self._given)

    def _read(self, generation: Generation, seconds: float, num_prompt_tokens: int) -> SampledTurn:
        span = self._log.sample(generation, routed_from=self._log.num_routed())
        self._sampled.append(span)
        self._is_spoken = True
        parsed = self._parser.parse(said_in(self._template, generation), self._tools)
        self._messages.append(assistant_message(parsed))
        return SampledTurn(
            span=span,
            text=self._template.decode(generation.token_ids),
            parsed=parsed,
            finish_reason=generation.finish_reason,
            engine_seconds=seconds,
            waited_seconds=generation.waited_seconds,
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=generation.num_cached_tokens,
        )

    def _prepare(self, messages: Sequence[Message]) -> Continuation:
        if not self._is_spoken:
            raise RuntimeError("messages are observed after a turn, once")
        if self._prepared is None or self._prepared.messages != list(messages):
            before = Conversation(self._messages, self._tools, self._log.token_ids, self._sampled, self._prompt)
            self._prepared = continue_with(self._template, before, messages, self._history)
        return self._prepared

    def _record_start(self, span: Span) -> None:
        self._given.append(opening_span(span, self._messages, self._tools, self._template))


def assistant_message(parsed: ParsedTurn) -> Message:
    """A turn as a chat message, the way a server with the same parsers would hand it to its client."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {"id": call_id(index), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for index, call in enumerate(parsed.calls)
        ]
    return message


def call_id(index: int) -> str:
    """Id of a turn's n-th tool call; nine characters, which every template accepts."""
    return f"call{index:05d}"
