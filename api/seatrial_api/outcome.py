"""How a trial ended: the one enum that decides who is to blame and what is trained."""

from enum import StrEnum


class Outcome(StrEnum):
    """One value per way a trial can end.

    Model outcomes are graded and trained as configured. Infrastructure outcomes never enter a group's
    statistics: the trial is resumed, retried or replaced, and no reward is invented for it.
    """

    COMPLETED = "Completed"
    """The agent ended its work by itself and the verifier graded it."""

    CONTEXT_EXCEEDED = "ContextExceeded"
    """The conversation no longer fits the model's context length."""

    TURN_TOO_LONG = "TurnTooLong"
    """A turn reached its token limit without a tool call or an answer."""

    STEPS_EXHAUSTED = "StepsExhausted"
    """The agent used every step that its harness allows."""

    TIME_EXHAUSTED = "TimeExhausted"
    """The agent used up its charged time; waiting for infrastructure is not charged."""

    SANDBOX_FAILED = "SandboxFailed"
    """The sandbox could not be started, or died, and could not be restored."""

    REPLAY_DIVERGED = "ReplayDiverged"
    """The sandbox died, and in the one that took its place a tool call was answered otherwise than before."""

    TOOL_SERVER_FAILED = "ToolServerFailed"
    """An MCP server was missing, hung or broke its protocol; a tool that answers with an error does not count."""

    ENGINE_FAILED = "EngineFailed"
    """No inference engine could produce the turn, after fail-over."""

    VERIFIER_FAILED = "VerifierFailed"
    """The verifier crashed, timed out or left no reward that can be read."""

    JUDGE_FAILED = "JudgeFailed"
    """The judge model gave no verdict within its retries."""

    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """The trial ran into its wall-clock deadline while its charged time was not spent."""

    HARNESS_FAILED = "HarnessFailed"
    """The harness itself raised: a bug in our code or the user's, never the model's doing."""

    CANCELLED = "Cancelled"
    """The run stopped while the trial was in flight."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the model bears no blame: such a trial is never graded and never trained."""
        return self not in _MODEL_OUTCOMES


_MODEL_OUTCOMES = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.CONTEXT_EXCEEDED,
        Outcome.TURN_TOO_LONG,
        Outcome.STEPS_EXHAUSTED,
        Outcome.TIME_EXHAUSTED,
    }
)
