"""The loop of reasoning and acting: the policy speaks, its tool calls are made, and it reads the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from seatrial_api.errors import TransientError
from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessLimits
from seatrial_api.trajectory import ToolCall, Turn
from seatrial_rollout.harness.compaction import NOT_CALLED, SUM_UP
from seatrial_rollout.harness.errors import EngineFailedError, HarnessError, ToolServerError
from seatrial_rollout.harness.toolbox import Toolbox
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.parsed import ParsedCall, ParseFault
from seatrial_rollout.tito.session import GenerationBrokenError, SampledTurn, Session, call_id
from seatrial_rollout.tito.template import Message

_NUDGE = (
    "\n\n[Only about {tokens} tokens of context are left. Finish now: do what is essential with as few calls as "
    "possible, then give your final answer.]"
)


type BeginAnew = Callable[[str], Awaitable[list[Message]]]
"""The first messages of a conversation that goes on from a summary."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the model ended its work."""

    outcome: Outcome
    detail: str = ""
    final_answer: str = ""

    @classmethod
    def of_error(cls, error: Exception) -> Self:
        """How work ends that an error cut off."""
        if isinstance(error, HarnessError):
            return cls(error.outcome, str(error))
        return cls(Outcome.HARNESS_FAILED, f"{type(error).__name__}: {error}")


class _TimeSpentError(Exception):
    """The charged time ran out inside of a tool call."""


class ReActLoop:
    """One agent's work, in one conversation or in several that go on from each other.

    Each step is a turn of the policy and the calls that it made, in the order in which it made them: calls change
    the world, so their order is part of what the policy did. The loop ends with a turn that calls no tool, or at a
    limit. What the harness has to say (answers to malformed calls, the nudge) it says inside tool messages.

    Where a conversation may begin anew, the policy is asked to sum up instead of to finish. Its next turn is the
    summary, whatever else it says, and the next conversation is a sequence of its own.
    """

    def __init__(
        self,
        session: Session,
        toolbox: Toolbox,
        limits: HarnessLimits,
        clock: TrialClock,
        *,
        max_steps: int,
        begin_anew: BeginAnew | None = None,
    ) -> None:
        self._session = session
        self._toolbox = toolbox
        self._limits = limits
        self._clock = clock
        self._max_steps = max_steps
        self._begin_anew = begin_anew
        self._repairs_left = limits.max_parse_repairs
        self._has_nudged = False
        self.sampled: list[SampledTurn] = []
        """The turns so far."""
        self.calls: list[list[ToolCall]] = []
        """The tool calls of each turn so far."""

    async def run(self, messages: list[Message]) -> Ending:
        """Work on a conversation that begins with `messages` until it ends.

        Raises:
            HarnessError: The infrastructure gave way; the session keeps all that came before.
            InvalidInputError: The chat template refuses the conversation.
        """
        self._session.start(messages, self._toolbox.schemas())
        while len(self.sampled) < self._max_steps:
            if ending := self._limit_reached():
                return ending
            turn = await self._next_turn()
            if self._begin_anew is not None and self._has_nudged:
                self._go_on_from(turn, await self._begin_anew(turn.parsed.content))
                continue
            if ending := self._ending_of(turn):
                return ending
            try:
                answers = await self._act(turn)
            except _TimeSpentError:
                return self._time_exhausted()
            if len(self.sampled) < self._max_steps and not self._observe(answers):
                return Ending(Outcome.CONTEXT_EXCEEDED, f"the answers do not fit into {self._session.room} tokens")
        return Ending(Outcome.STEPS_EXHAUSTED, f"no final answer within {self._max_steps} turns")

    def turns(self) -> list[Turn]:
        """The turns so far as they are stored."""
        return [
            Turn(
                sequence=turn.span.sequence,
                start=turn.span.start,
                stop=turn.span.stop,
                finish_reason=turn.finish_reason,
                text=turn.text,
                tool_calls=calls,
                engine_seconds=turn.engine_seconds,
                cached_tokens=turn.num_cached_tokens,
            )
            for turn, calls in zip(self.sampled, self.calls, strict=True)
        ]

    def _go_on_from(self, summary: SampledTurn, messages: list[Message]) -> None:
        self.calls[-1] += [self._toolbox.failed(call, NOT_CALLED) for call in summary.parsed.calls]
        self._has_nudged = False
        self._session.start(messages, self._toolbox.schemas())

    def _limit_reached(self) -> Ending | None:
        if self._clock.is_spent:
            return self._time_exhausted()
        if self._session.room <= 0:
            return Ending(Outcome.CONTEXT_EXCEEDED, f"{self._session.num_tokens} tokens leave no room for a turn")
        return None

    def _time_exhausted(self) -> Ending:
        return Ending(Outcome.TIME_EXHAUSTED, f"{self._clock.charged:.1f} s charged")

    async def _next_turn(self) -> SampledTurn:
        seconds = self._limits.engine_call_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                turn = await self._session.turn()
        except TimeoutError as exc:
            raise EngineFailedError(f"no engine finished a turn within {seconds:g} s") from exc
        except (TransientError, GenerationBrokenError) as exc:
            raise EngineFailedError(str(exc)) from exc
        self._clock.excuse(min(turn.waited_seconds, turn.engine_seconds))
        self.sampled.append(turn)
        self.calls.append([])
        return turn

    def _ending_of(self, turn: SampledTurn) -> Ending | None:
        """How the turn ends the work, if it does."""
        if turn.parsed.calls and not turn.parsed.faults:
            return None
        if turn.finish_reason == "length" and not turn.parsed.calls:
            return self._cut_short(turn.span.stop - turn.span.start)
        if not turn.parsed.faults:
            return Ending(Outcome.COMPLETED, final_answer=turn.parsed.content)
        if self._repairs_left == 0:
            detail = f"a malformed tool call after {self._limits.max_parse_repairs} repairs: "
            return Ending(Outcome.COMPLETED, detail + turn.parsed.faults[0].problem, turn.parsed.content)
        self._repairs_left -= 1
        return None

    def _cut_short(self, num_tokens: int) -> Ending:
        if self._session.room <= 0:
            return Ending(Outcome.CONTEXT_EXCEEDED, f"the context was full after {num_tokens} tokens of a turn")
        return Ending(Outcome.TURN_TOO_LONG, f"no whole tool call and no end within {num_tokens} tokens")

    async def _act(self, turn: SampledTurn) -> list[Message]:
        """Make the turn's calls; the answers as tool messages, those to malformed calls last."""
        for call in turn.parsed.calls:
            self.calls[-1].append(await self._call(call))
        answers = [made.result for made in self.calls[-1]] + [_explain(fault) for fault in turn.parsed.faults]
        names = [call.name for call in turn.parsed.calls] + [""] * len(turn.parsed.faults)
        return [
            {"role": "tool", "tool_call_id": call_id(index), "name": name, "content": answer}
            for index, (name, answer) in enumerate(zip(names, answers, strict=True))
        ]

    async def _call(self, call: ParsedCall) -> ToolCall:
        limit, remaining = self._limits.tool_call_timeout_seconds, self._clock.remaining
        seconds = min(limit, remaining)
        try:
            return await self._toolbox.call(call, seconds)
        except TimeoutError as exc:
            silence = f"no answer within {seconds:g} s"
            hung = self._toolbox.failed(call, silence, seconds)
            self.calls[-1].append(hung)
            if remaining < limit and self._clock.is_spent:
                raise _TimeSpentError from exc
            raise ToolServerError(
                server=hung.server, problem=f"{hung.tool} gave no answer within {seconds:g} s"
            ) from exc
        except HarnessError as exc:
            self.calls[-1].append(self._toolbox.failed(call, str(exc)))
            raise

    def _observe(self, messages: list[Message]) -> bool:
        """Show the answers to the policy, with the nudge if it is due; False if they do not fit."""
        room = self._session.room - self._session.tokens_of(messages)
        if not self._has_nudged and room <= self._limits.context_nudge_fraction * self._session.context_length:
            last = messages[-1]
            words = (_NUDGE if self._begin_anew is None else SUM_UP).format(tokens=max(room, 0))
            nudged = [*messages[:-1], last | {"content": last["content"] + words}]
            # A nudge that fills the context would help nobody.
            self._has_nudged = self._session.room > self._session.tokens_of(nudged)
            if self._has_nudged:
                messages = nudged
        if self._session.room <= self._session.tokens_of(messages):
            return False
        self._session.observe(messages)
        return True


def _explain(fault: ParseFault) -> str:
    excerpt = fault.text if len(fault.text) <= 200 else f"{fault.text[:200]}..."
    return f"Error: this tool call was not made: {fault.problem}.\n{excerpt}"
