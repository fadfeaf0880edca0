"""All conversations of one agent with the policy, and the log that holds each of their tokens once."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_api.spec.harness import HarnessLimits, Sampling
from seatrial_api.trajectory import GivenSpan, TokenSequence, Turn
from seatrial_rollout.engine.errors import RequestRefusedError
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.continuation import (
    Continuation,
    Conversation,
    History,
    continue_with,
    given_span,
    opening_span,
)
from seatrial_rollout.tito.log import Span, TokenLog
from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.proxy.errors import (
    BudgetSpentError,
    ContextOverflowError,
    InvalidRequestError,
    NoEngineError,
    RequestError,
)
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Exchange, Reply
from seatrial_rollout.tito.proxy.grammar import structural_tag
from seatrial_rollout.tito.proxy.points import Point, Points
from seatrial_rollout.tito.proxy.replies import make_reply, message_of
from seatrial_rollout.tito.proxy.stop_texts import Cut, cut_at, cut_behind_call
from seatrial_rollout.tito.proxy.turns import TurnRecord, TurnRecords
from seatrial_rollout.tito.session import GeneratesTokens
from seatrial_rollout.tito.template import ChatTemplate, Message

_REQUESTS_PER_TURN = 4
"""An agent may ask for so many things besides each turn: to be answered again, or in error."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Terms:
    """What an agent gets."""

    limits: HarnessLimits
    max_turns: int
    """Turns of the policy over all conversations of the agent."""
    sampling: Sampling | None
    """How tokens are drawn, whatever the agent asks for; as it asks if None."""
    history: History = "Keep"
    """What happens where the template would rewrite earlier turns."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a request would do to the log."""

    request: ChatRequest
    point: Point | None
    """The turn behind which it goes on; None for a conversation that begins."""
    continuation: Continuation
    prompt: list[int]
    """The tokens that the engine is to read."""
    parser: TurnParser


class AgentSession:
    """One agent's requests: each is answered by a turn of the policy, or from the log if it was asked before.

    A conversation goes on in its sequence as long as the agent only adds to it. Whatever else it does (leaves a turn
    out, asks aside, hands work to another agent, rewrites its history) opens another sequence, whose parent is the
    one that it branches from. A request touches the log only once the engine has answered: one that fails, or that
    was planned behind a turn that another request has gone on from meanwhile, leaves no trace or branches off.

    A client that gives up and asks again is answered by what it asked for first, which goes on meanwhile.
    """

    def __init__(
        self,
        policy: Policy,
        engine: GeneratesTokens,
        terms: Terms,
        *,
        trial_id: str = "",
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make a session.

        Args:
            policy: The model.
            engine: Continues token prompts.
            terms: What the agent gets.
            trial_id: Names the trial to the engine.
            on_wait: Told the seconds of each turn in which the engine made no progress for reasons of ours.
        """
        self._policy = policy
        self._template = ChatTemplate.load(policy.model_path)
        self._engine = engine
        self._terms = terms
        self._trial_id = trial_id
        self._on_wait = on_wait
        self._log = TokenLog()
        self._given: list[GivenSpan] = []
        self._points = Points()
        self._turns = TurnRecords()
        self._exchanges: dict[bytes, Exchange] = {}
        self.num_requests = 0
        """Requests so far, retries included."""
        self._num_turns_asked = 0
        self.refusal: RequestError | None = None
        """What the newest request was refused with; none if it was not."""

    @property
    def num_turns(self) -> int:
        """Turns that the policy has taken."""
        return len(self._turns)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens over all engine calls, cached ones included."""
        return sum(turn.usage.prompt_tokens for turn in self._turns)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from an engine's prefix cache."""
        return sum(turn.usage.cached_tokens for turn in self._turns)

    @property
    def last_content(self) -> str:
        """What the policy said in its last turn."""
        return self._turns.last_content

    def sequences(self) -> list[TokenSequence]:
        """The token sequences so far, in the order in which they were opened."""
        return self._log.sequences()

    def given(self) -> list[GivenSpan]:
        """The spans of tokens that the policy was given, with the messages they came from."""
        return list(self._given)

    def turns(self) -> list[Turn]:
        """The turns so far as they are stored."""
        return self._turns.stored()

    def ask(self, request: ChatRequest) -> Exchange:
        """The exchange that answers a request; a retry gets the one that is under way, or was had.

        A request that equals an earlier one is a retry if its client says so, or has not got the answer. If it has
        and asks again nevertheless, it wants another one.

        Raises:
            BudgetSpentError: The agent has asked as often as it may.
        """
        self.num_requests += 1
        if self.num_requests > self._terms.max_turns * _REQUESTS_PER_TURN:
            self.refusal = BudgetSpentError(f"the trial's {self.num_requests - 1} requests are spent")
            raise self.refusal
        key = hashlib.blake2b(request.key, digest_size=16).digest()
        earlier = self._exchanges.get(key)
        if earlier is not None and not earlier.has_failed and (request.is_retry or not earlier.is_delivered):
            return earlier
        exchange = self._exchanges[key] = Exchange(request)
        return exchange

    async def answer(self, exchange: Exchange) -> None:
        """See to it that an exchange has an outcome; whoever comes second waits for whoever came first."""
        if not exchange.claim():
            await exchange.wait()
            return
        try:
            exchange.conclude(await self._take_turn(exchange.request))
            self.refusal = None
        except RequestError as error:
            self.refusal = error
            exchange.conclude(error)
        except Exception as error:
            log.exception("a request could not be answered", trial=self._trial_id)
            self.refusal = RequestError(f"{type(error).__name__}: {error}")
            exchange.conclude(self.refusal)

    def count_tokens(self, request: ChatRequest) -> int:
        """Tokens that the engine would read for a request.

        Raises:
            InvalidRequestError: The template refuses the conversation.
        """
        return len(self._plan(request).prompt)

    async def _take_turn(self, request: ChatRequest) -> Reply:
        plan = self._plan(request)
        self._turns.observe(request.messages)
        room = self._policy.context_length - len(plan.prompt)
        if room <= 0:
            raise ContextOverflowError(num_tokens=len(plan.prompt), limit=self._policy.context_length)
        if self._num_turns_asked >= self._terms.max_turns:
            raise BudgetSpentError(f"the trial's {self._terms.max_turns} turns are spent")
        self._num_turns_asked += 1
        started = SYSTEM_CLOCK.now()
        try:
            generation = await self._generate(plan, room)
        except BaseException:
            self._num_turns_asked -= 1
            raise
        seconds = SYSTEM_CLOCK.now() - started
        self._on_wait(min(generation.waited_seconds, seconds))
        cut = cut_at(self._template, generation, request.stop)
        if request.is_single_call:
            cut = cut_behind_call(self._template, cut, plan.parser, request.tools)
        return self._take_in(plan, cut, seconds)

    def _plan(self, request: ChatRequest) -> _Plan:
        """Find where a conversation goes on, and what the policy is given there."""
        parser = self._parser(request)
        point, num_known = self._points.find(request.messages, request.tools)
        new = [_as_template_reads(message) for message in request.messages[num_known:]]
        if not new:
            raise InvalidRequestError("the conversation must end with a user or tool message", param="messages")
        if point is not None and (continuation := self._go_on(point, new)) is not None:
            kept = point.stop if continuation.inherited is None else continuation.inherited
            prompt = self._log.tokens(point.sequence, kept) + continuation.token_ids
            return _Plan(request, point, continuation, prompt, parser)
        messages = [_as_template_reads(message) for message in request.messages]
        try:
            text = self._template.render(messages, request.tools, generation_prompt=True)
        except InvalidInputError as error:
            raise InvalidRequestError(str(error), param="messages") from error
        ids = self._template.encode(text)
        return _Plan(request, None, Continuation(messages, ids, prompt=text), ids, parser)

    def _parser(self, request: ChatRequest) -> TurnParser:
        try:
            return TurnParser.of(self._template, self._policy.tool_call_format, with_tools=bool(request.tools))
        except InvalidInputError as error:
            raise InvalidRequestError(str(error), param="tools") from error

    def _go_on(self, point: Point, new: list[Message]) -> Continuation | None:
        """Go on behind a turn; None if the template has no form for it, so that the conversation is read afresh."""
        before = self._log.tokens(point.sequence, point.stop)
        conversation = Conversation(point.messages, point.tools, before, point.sampled, point.prompt)
        try:
            return continue_with(self._template, conversation, new, self._terms.history)
        except InvalidInputError:
            return None

    async def _generate(self, plan: _Plan, room: int) -> Generation:
        limits, asked = self._terms.limits, plan.request
        drawn = self._terms.sampling or Sampling(
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
        )
        request = GenerationRequest(
            token_ids=plan.prompt,
            max_tokens=min(asked.max_tokens or limits.max_turn_tokens, limits.max_turn_tokens, room),
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            stop_token_ids=sorted(self._template.stop_token_ids),
            structural_tag=structural_tag(asked.demand, asked.tools, plan.parser) if asked.demand else "",
            trial_id=self._trial_id,
        )
        try:
            async with asyncio.timeout(limits.engine_call_timeout_seconds):
                generation = await self._engine.generate(request)
        except TimeoutError as error:
            seconds = limits.engine_call_timeout_seconds
            raise NoEngineError(f"no engine finished a turn within {seconds:g} s") from error
        except RequestRefusedError as error:
            if asked.demand is None:
                raise NoEngineError(str(error)) from error
            what = f"the engine cannot enforce {asked.demand.param}: {error}"
            raise InvalidRequestError(what, param=asked.demand.param) from error
        except TransientError as error:
            raise NoEngineError(str(error)) from error
        if generation.finish_reason not in {"stop", "length"} or not generation.token_ids:
            num = len(generation.token_ids)
            raise NoEngineError(f"an engine ended a turn with {generation.finish_reason!r} after {num} tokens")
        return generation

    def _take_in(self, plan: _Plan, cut: Cut, seconds: float) -> Reply:
        """Put what was given and sampled into the log, and make the answer; nothing is awaited here."""
        generation, number = cut.generation, len(self._turns)
        reply = make_reply(cut, plan.parser, plan.request.tools, number=number, num_prompt=len(plan.prompt))
        given = self._give(plan)
        span = self._log.sample(generation, sequence=given.sequence)
        before = () if plan.point is None or plan.point.sequence != span.sequence else plan.point.sampled
        self._turns.add(
            TurnRecord(
                span=span,
                text=self._template.decode(generation.token_ids),
                finish_reason=generation.finish_reason,
                engine_seconds=seconds,
                content=reply.content,
                calls=reply.calls,
                usage=reply.usage,
            )
        )
        known = [] if plan.point is None else plan.point.messages
        point = Point(
            sequence=span.sequence,
            stop=span.stop,
            messages=[*known, *plan.continuation.messages, message_of(reply)],
            tools=plan.request.tools,
            sampled=(*before, span),
            prompt=plan.continuation.prompt,
        )
        self._points.add(point, plan.request.messages, [call.call_id for call in reply.calls])
        return reply

    def _give(self, plan: _Plan) -> Span:
        """Log what the policy was given, behind the turn if nothing else has come there meanwhile."""
        point, ids, messages = plan.point, plan.continuation.token_ids, plan.continuation.messages
        if point is None:
            span = self._log.start(ids, parent=self._turns.last_sequence)
            self._given.append(opening_span(span, messages, plan.request.tools, self._template))
        elif plan.continuation.inherited is not None:
            span = self._log.start(ids, parent=point.sequence, inherited=plan.continuation.inherited)
            whole = [*point.messages, *messages]
            self._given.append(opening_span(span, whole, point.tools, self._template))
        elif self._log.length(point.sequence) == point.stop:
            span = self._log.give(ids, sequence=point.sequence)
            self._given.append(given_span(span, messages))
        else:
            span = self._log.start(ids, parent=point.sequence, inherited=point.stop)
            self._given.append(given_span(span, messages, continues=True))
        return span


def _as_template_reads(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "is_error"}
