"""Conversations with a scripted policy, and their trajectories."""

from collections.abc import Sequence
from typing import Any

from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessLimits, Sampling
from seatrial_api.trajectory import Trajectory, Turn
from seatrial_rollout.tito.continuation import History
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.session import GeneratesTokens, SampledTurn, Session
from tests.chat_models import ChatModel


def make_session(
    model: ChatModel,
    engine: GeneratesTokens,
    *,
    history: History = "Keep",
    context_length: int = 100_000,
    max_turn_tokens: int = 50_000,
) -> Session:
    """A session of `model` with an engine."""
    limits = HarnessLimits(max_turn_tokens=max_turn_tokens)
    policy = Policy(model.path, context_length)
    return Session(policy, engine, Sampling(), limits, history, trial_id="trial-1")


def trajectory_of(session: Session, turns: Sequence[SampledTurn], **changes: Any) -> Trajectory:
    """What would be stored of a session."""
    fields: dict[str, Any] = {
        "trial_id": "trial-1",
        "group_id": "group-1",
        "task": "task",
        "domain": "office",
        "purpose": "Train",
        "harness": "archipelago",
        "start_version": 0,
        "outcome": Outcome.COMPLETED,
        "reward": 1.0,
        "sequences": session.sequences(),
        "given": session.given(),
        "turns": [
            Turn(
                sequence=turn.span.sequence,
                start=turn.span.start,
                stop=turn.span.stop,
                finish_reason=turn.finish_reason,
                text=turn.text,
            )
            for turn in turns
        ],
    }
    return Trajectory(**(fields | changes))


def tool_message(content: str, index: int = 0, name: str = "sheets_lookup") -> dict[str, Any]:
    """An answer to the n-th tool call of a turn."""
    return {"role": "tool", "tool_call_id": f"call{index:05d}", "name": name, "content": content}


def user_message(content: str) -> dict[str, Any]:
    """Words of the user."""
    return {"role": "user", "content": content}
