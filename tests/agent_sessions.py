"""Agents that talk to the policy through the proxy, in tests."""

from collections.abc import Callable, Iterable
from typing import Any

from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessLimits, Sampling
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.tito.continuation import History
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.proxy.agent_session import AgentSession, Terms
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Reply
from seatrial_rollout.tito.proxy.reading import assistant
from seatrial_rollout.tito.session import GeneratesTokens
from seatrial_rollout.tito.template import Message
from seatrial_rollout.tito.verify import verify
from tests import agents
from tests.chat_models import ChatModel
from tests.scripted_engine import Said, ScriptedEngine

TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a price up.",
        "parameters": {"type": "object", "properties": {"row": {"type": "string"}}, "required": ["row"]},
    },
}


def agent_session(
    model: ChatModel,
    engine: GeneratesTokens,
    *,
    history: History = "Keep",
    sampling: Sampling | None = Sampling(),  # noqa: B008  frozen
    context_length: int = 100_000,
    max_turns: int = 20,
    on_wait: Callable[[float], None] = lambda _: None,
    **limits: Any,
) -> AgentSession:
    """A session of `model` with an engine."""
    terms = Terms(HarnessLimits(**limits), max_turns, sampling, history)
    return AgentSession(Policy(model.path, context_length), engine, terms, trial_id="trial-1", on_wait=on_wait)


class Agent:
    """Asks as real agents do: with the whole conversation, each time."""

    def __init__(self, model: ChatModel, script: Iterable[Said | str], **options: Any) -> None:
        self.model = model
        self.engine = ScriptedEngine(model.template, script)
        self.session = agent_session(model, self.engine, **options)

    async def ask(self, messages: list[Message], *, is_got: bool = True, **fields: Any) -> Reply:
        """The answer to a request; what it leaves is checked to be token-exact."""
        exchange = self.session.ask(ChatRequest(messages, **({"tools": [TOOL]} | fields)))
        await self.session.answer(exchange)
        exchange.is_delivered = is_got
        reply = exchange.reply
        check(self.session, self.model)
        return reply

    def call(self, row: str) -> Said:
        """A turn that calls the tool."""
        family = self.model.family
        return Said(family.text_of_call("lookup", {"row": row}), stop=family.stop_after_call())


def echo(reply: Reply) -> Message:
    """A turn as an agent sends it back."""
    return assistant(reply.content, [(call.call_id, call.name, call.arguments) for call in reply.calls])


def answer(reply: Reply, content: str) -> Message:
    """The answer to a turn's one call."""
    return {"role": "tool", "tool_call_id": reply.calls[0].call_id, "content": content}


def user(content: str) -> Message:
    """Words of the user."""
    return {"role": "user", "content": content}


def stored(session: AgentSession) -> Trajectory:
    """The trajectory that would be stored of a session."""
    record = HarnessRecord(
        outcome=Outcome.COMPLETED, sequences=session.sequences(), turns=session.turns(), given=session.given()
    )
    return agents.stored(record)


def check(session: AgentSession, model: ChatModel) -> Trajectory:
    """Prove that a session is token-exact, and that each of its tokens is trained once."""
    trajectory = stored(session)
    assert verify(trajectory, model.template) == []
    assert trajectory.num_sampled == sum(turn.stop - turn.start for turn in trajectory.turns)
    return trajectory


def parents(session: AgentSession) -> list[int | None]:
    """The parent of each sequence."""
    return [sequence.parent for sequence in session.sequences()]
