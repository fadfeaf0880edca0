"""What a harness leaves behind for the trial runner."""

from dataclasses import dataclass, field

from harbor.models.agent.context import AgentContext

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import GivenSpan, TokenSequence, Turn


@dataclass(frozen=True, slots=True)
class HarnessRecord:
    """One agent's run, complete up to the point where it ended, however it ended."""

    outcome: Outcome
    """How the agent ended; `Cancelled` if it was cut off from outside, whose reason only the runner knows."""
    detail: str = ""
    """For a person: why it ended."""
    final_answer: str = ""
    """Text of the turn that ended the agent's work by itself."""
    sequences: list[TokenSequence] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    given: list[GivenSpan] = field(default_factory=list)
    charged_seconds: float = 0.0
    """Time charged to the agent."""
    num_restores: int = 0
    """Sandboxes that took the place of one that had died."""
    restore_seconds: float = 0.0
    """Wall time that they took."""
    num_prompt_tokens: int = 0
    """Prompt tokens over all engine calls, cached ones included."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from an engine's prefix cache."""

    def report_to(self, context: AgentContext) -> None:
        """Tell Harbor what its own results have a place for."""
        context.n_input_tokens = self.num_prompt_tokens
        context.n_cache_tokens = self.num_cached_tokens
        context.n_output_tokens = sum(turn.stop - turn.start for turn in self.turns)
        context.metadata = {
            "outcome": str(self.outcome),
            "detail": self.detail,
            "turns": len(self.turns),
            "sequences": len(self.sequences),
        }
