"""What one stage of a run left behind: the record that launchers act on and people read."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from seatrial_api.base import ApiModel
from seatrial_api.spec.harness import Sampling


class StageResult(StrEnum):
    """How a stage ended."""

    PASSED = "Passed"
    """Every gate holds."""
    GATE_FAILED = "GateFailed"
    """The stage ran to its end and a gate does not hold."""
    GUARDED = "Guarded"
    """A guard stopped the stage; a checkpoint allows it to go on."""
    FAILED = "Failed"
    """The stage could not run to its end."""
    INTERRUPTED = "Interrupted"
    """A person or the platform stopped it; a checkpoint allows it to go on."""


class GateResult(ApiModel):
    """One gate: measured value against bound."""

    name: str
    """What is measured, in words: `non-model error rate`."""
    value: float | None
    """The measured value; none when nothing could be measured, which fails the gate."""
    bound: float
    """The bound it is held against."""
    direction: Literal["AtMost", "AtLeast"]
    """On which side of the bound the value has to lie."""
    detail: str = ""
    """How it was measured: counts, intervals."""

    @property
    def passed(self) -> bool:
        """Whether the gate holds."""
        if self.value is None:
            return False
        return self.value <= self.bound if self.direction == "AtMost" else self.value >= self.bound


class Estimate(ApiModel):
    """A mean with its interval."""

    mean: float
    """The estimate."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    count: int
    """Number of tasks behind it."""


class ReadAgain(StrEnum):
    """Why an engine computed prompt tokens once more that a trial had had it read before."""

    NEW_WEIGHTS = "NewWeights"
    """Weights came in between; keys and values of the former ones are not taken for theirs."""
    AFRESH = "Afresh"
    """A conversation began afresh: a sub-agent's, a summary, or one whose beginning the agent had changed."""
    LOST = "Lost"
    """The cache had them no more, or in another engine, or not as a whole block."""


class TokenUse(ApiModel):
    """Tokens of trials with one harness, by price tier."""

    harness: str
    """Harness that ran the agents."""
    trials: int = 0
    """Trials in which the policy took a turn."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that came from a prefix cache, over all engine calls."""
    prompt_tokens: int = 0
    """Prompt tokens that engines computed."""
    completion_tokens: int = 0
    """Sampled tokens."""
    read_again: dict[ReadAgain, int] = Field(default_factory=dict)
    """Of the computed prompt tokens, those that could have been cached, by why they were not."""

    def __add__(self, other: "TokenUse") -> "TokenUse":
        """Both together, under this one's harness."""
        return TokenUse(
            harness=self.harness,
            trials=self.trials + other.trials,
            cached_prompt_tokens=self.cached_prompt_tokens + other.cached_prompt_tokens,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            read_again={
                why: self.read_again.get(why, 0) + other.read_again.get(why, 0)
                for why in ReadAgain
                if why in self.read_again or why in other.read_again
            },
        )

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that came from a prefix cache; none without any."""
        total = self.cached_prompt_tokens + self.prompt_tokens
        return self.cached_prompt_tokens / total if total else None


class ToolUse(ApiModel):
    """What graded trials made of one tool."""

    calls: int
    """Calls."""
    failed: int
    """Calls that were answered with an error."""
    trials: int
    """Trials that called it."""
    passed: int
    """Trials that called it and passed."""


class EvaluationResult(ApiModel):
    """Held-out results of one model under one sampling setting."""

    name: str
    """Task set and sampling: `held-out T=1`."""
    harness: str
    """Harness that ran the agent."""
    task_set: str = ""
    """`held-out`, or the name of a regression set; empty for a validation."""
    sampling: Sampling | None = None
    """How tokens were drawn, in an Evaluate stage."""
    purpose: str = ""
    """What its trials are stored under, in an Evaluate stage."""
    pass_at_1: Estimate
    """Share of tasks solved in one try, clustered by task."""
    gain: Estimate | None = None
    """Paired change of pass@1 since the Initial evaluation, over the tasks that both measured in the same way."""
    pass_at_k: dict[int, Estimate] = Field(default_factory=dict)
    """Unbiased pass@k by k, clustered by task."""
    mean_reward: Estimate
    """Mean reward, clustered by task."""
    by_domain: dict[str, Estimate] = Field(default_factory=dict)
    """pass@1 by domain, clustered by task."""
    by_tool: dict[str, ToolUse] = Field(default_factory=dict)
    """Use of each tool, the most called first."""
    outcomes: dict[str, int] = Field(default_factory=dict)
    """Number of trials by outcome."""
    behaviour: dict[str, float] = Field(default_factory=dict)
    """Means over graded trials: `turns`, `tokens`, `tokens_per_turn`, `prompt_tokens`, `tool_calls`,
    `tool_success_rate`, `code_share` (calls that run code), `charged_seconds`."""
    tokens: TokenUse | None = None
    """Tokens of all its trials, those that infrastructure ended included, in an Evaluate stage."""


class Spread(ApiModel):
    """A mean over passes, and how far they lie apart."""

    mean: float
    """Over passes."""
    std: float
    """Standard deviation of the passes, ddof 1; 0 for a single one."""
    num_passes: int
    """Number of passes."""


type Verdict = Literal["Baseline", "Better", "Worse", "Tie"]
"""How an arm compares with the first one; a tie is a difference whose 95 % interval holds zero."""


class ArmResult(ApiModel):
    """Held-out results of one arm of an Ablate stage."""

    name: str
    """Name of the arm."""
    pass_at_1: Spread
    """Share of tasks solved in one try."""
    mean_reward: Spread
    """Mean reward."""
    gain: Estimate | None = None
    """Paired difference in pass@1 from the first arm, by task; none for the first arm itself."""
    reward_gain: Estimate | None = None
    """The same of the mean reward."""
    verdict: Verdict = "Baseline"
    """How it compares with the first arm, by pass@1."""


class StageReport(ApiModel):
    """Persisted in run storage before the driver exits; a finished stage asked for again is answered from it."""

    stage: str
    """Name of the stage."""
    kind: str
    """Kind of the stage: `Preflight`, `Evaluate`, `Overfit`, `Ablate` or `Train`."""
    result: StageResult
    """How it ended."""
    message: str = ""
    """One sentence for a person."""
    gates: list[GateResult] = Field(default_factory=list)
    """Every gate of the stage."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Headline metrics at the end of the stage."""
    evaluations: list[EvaluationResult] = Field(default_factory=list)
    """Held-out results, if the stage measured any."""
    arms: list[ArmResult] = Field(default_factory=list)
    """Every arm of an Ablate stage, in the order of the manifest."""
    outcomes: dict[str, int] = Field(default_factory=dict)
    """Number of trials by outcome."""
    tokens: list[TokenUse] = Field(default_factory=list)
    """Tokens of its trials, by harness."""
    seconds: float = 0.0
    """Wall time of the stage."""
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by phase: what the time was spent on."""
    checkpoint: str | None = None
    """Checkpoint that the next stage or a resumption starts from."""
    needs_change: bool = False
    """Whether trying again is in vain until a person changes the manifest, a task or what is stored."""
    fingerprint: str = ""
    """Digest of all that decides the stage's result; a change makes the report stale."""
