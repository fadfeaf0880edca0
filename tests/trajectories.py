"""Builders of records for tests."""

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import TokenSequence, ToolCall, Trajectory, Turn


def make_sequence(prompt: list[int], sampled: list[int], *, logprob: float = -0.5, version: int = 0) -> TokenSequence:
    """A prompt that was given and tokens that were sampled after it."""
    return TokenSequence(
        token_ids=prompt + sampled,
        loss_mask=[0] * len(prompt) + [1] * len(sampled),
        logprobs=[0.0] * len(prompt) + [logprob] * len(sampled),
        weight_versions=[-1] * len(prompt) + [version] * len(sampled),
    )


def make_trajectory(
    trial_id: str = "g0/0",
    *,
    reward: float | None = 1.0,
    outcome: Outcome = Outcome.COMPLETED,
    task: str = "task-a",
    sampled: int = 4,
    failed_calls: int = 0,
    version: int = 0,
) -> Trajectory:
    """A trajectory of one turn with one tool call that worked, and some that did not."""
    sequence = make_sequence([1, 2, 3], list(range(10, 10 + sampled)), version=version)
    calls = [
        ToolCall(server="sheets", tool="lookup", arguments="{}", result="7", is_error=False, duration_seconds=0.01),
        *(
            ToolCall(server="sheets", tool="lookup", arguments="{}", result="no", is_error=True, duration_seconds=0.01)
            for _ in range(failed_calls)
        ),
    ]
    return Trajectory(
        trial_id=trial_id,
        group_id=trial_id.split("/", maxsplit=1)[0],
        task=task,
        domain="finance",
        purpose="train",
        harness="archipelago",
        start_version=version,
        outcome=outcome,
        reward=None if outcome.is_infrastructure else reward,
        scores={} if outcome.is_infrastructure or reward is None else {"reward": reward},
        sequences=[sequence],
        turns=[Turn(sequence=0, start=3, stop=3 + sampled, finish_reason="stop", text="x", tool_calls=calls)],
        phase_seconds={"agent": 0.5},
    )
