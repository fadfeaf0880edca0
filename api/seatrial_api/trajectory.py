"""The record of one trial: token sequences, turns, tool calls and reward, exactly as they happened."""

from typing import Self

from pydantic import Field, model_validator

from seatrial_api.base import ApiModel, NonNegative
from seatrial_api.finding import Finding
from seatrial_api.outcome import Outcome


class RoutedExperts(ApiModel):
    """Which experts an engine sent a run of tokens to, as the engine wrote it."""

    start: NonNegative
    """Position of the first of these tokens in its sequence."""
    data: str
    """Base64 of a NumPy file: whole numbers of shape (tokens, layers, experts of a token)."""


class TokenSequence(ApiModel):
    """An append-only token sequence; the four lists run in parallel, one entry a token.

    Nothing that the engine produced is ever re-tokenised. Each sampled token has mask 1 in exactly one
    sequence of its trajectory; a prefix inherited from a parent sequence has mask 0.
    """

    token_ids: list[int]
    """Token ids in the order in which the engine read them."""
    loss_mask: list[int]
    """1 where the policy sampled the token, 0 where it was given."""
    logprobs: list[float]
    """Natural-log probability of each sampled token under the rollout policy; 0 where the mask is 0."""
    weight_versions: list[int]
    """Version of the weights that sampled each token; -1 where the mask is 0."""
    parent: int | None = None
    """Index of the sequence this one branched from, if any."""
    routed_experts: list[RoutedExperts] = Field(default_factory=list)
    """Experts of the tokens that an engine has read, run by run; empty unless the run replays routers."""

    @model_validator(mode="after")
    def _lists_run_in_parallel(self) -> Self:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.weight_versions)}
        if len(lengths) != 1:
            msg = f"token lists differ in length: {sorted(lengths)}"
            raise ValueError(msg)
        return self

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.loss_mask)


class ToolCall(ApiModel):
    """One call of a tool and what came back."""

    server: str
    """MCP server that owns the tool; empty for a call that named no known tool."""
    tool: str
    """Name of the tool without its server prefix."""
    arguments: str
    """Arguments as the JSON text that the model wrote."""
    result: str
    """Text that the model saw, after truncation."""
    is_error: bool
    """Whether the tool answered with an error, or the call could not be made."""
    duration_seconds: float
    """Wall time of the call."""


class Turn(ApiModel):
    """One engine call and the tool calls that it led to."""

    sequence: NonNegative
    """Index of the token sequence that holds this turn."""
    start: NonNegative
    """Position of the first sampled token in that sequence."""
    stop: NonNegative
    """Position after the last sampled token."""
    finish_reason: str
    """`stop`, `length` or `abort`, as the engine said."""
    text: str
    """The sampled tokens as text, special tokens kept."""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    """Calls in the order in which the model made them."""
    engine_seconds: float = 0.0
    """Wall time of the engine call."""
    cached_tokens: NonNegative = 0
    """Of the `start` tokens before it, how many the engine had in its prefix cache."""


class GivenSpan(ApiModel):
    """Tokens that the model was given, and the chat messages that they were rendered from.

    With the turns these spans cover a sequence without gaps, so that a stored trajectory can be checked
    against the model's chat template.
    """

    sequence: NonNegative
    """Index of the token sequence that holds this span."""
    start: NonNegative
    """Position of the first given token in that sequence; what lies before it in a new sequence is its parent's."""
    stop: NonNegative
    """Position after the last given token."""
    messages: str
    """JSON list of the messages: the whole conversation where a sequence starts afresh, only the new ones elsewhere."""
    tools: str = "[]"
    """JSON list of the tool schemas; only where a sequence starts."""
    rendered_at: str = ""
    """The time that the template was told, ISO 8601; only where a sequence starts and the template asks for it."""
    continues: bool = False
    """Whether a sequence branches off here: behind an earlier turn, whose tokens and all before it are inherited."""


class Trajectory(ApiModel):
    """All that is kept of one trial."""

    trial_id: str
    """Unique within the run; a retry has an id of its own."""
    group_id: str
    """Group (one task, `groupSize` trials) that the trial belongs to."""
    task: str
    """Name of the task."""
    domain: str
    """Domain that the task belongs to."""
    purpose: str
    """What the trial was for: a stage name, or `validation`."""
    harness: str
    """Harness that ran the agent."""
    start_version: int
    """Weight version when the trial was admitted."""
    outcome: Outcome
    """How the trial ended."""
    detail: str = ""
    """For a person: the error's text, or why the trial ended."""
    reward: float | None
    """The verifier's reward; none for an infrastructure outcome."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Every figure the verifier wrote, `reward` included."""
    sequences: list[TokenSequence] = Field(default_factory=list)
    """The trial's token sequences; the first one is the main conversation."""
    turns: list[Turn] = Field(default_factory=list)
    """The agent's turns in order."""
    given: list[GivenSpan] = Field(default_factory=list)
    """Where the tokens come from that the policy did not sample; empty for a harness that keeps no log of its own."""
    charged_seconds: float = 0.0
    """Time charged to the agent."""
    world: str = ""
    """WorldImage of its sandbox; the sandbox's provider where that is none of pods. Empty if the trial got none."""
    num_restores: NonNegative = 0
    """Sandboxes that took the place of one that had died."""
    restore_seconds: float = 0.0
    """Wall time in which the trial stood still for them; not charged."""
    num_resumptions: NonNegative = 0
    """Trial processes that took the place of one that had died, and went on with the turns that it had sampled."""
    findings: list[Finding] = Field(default_factory=list)
    """What the sandbox's audit found remarkable once the agent had ended, at most a hundred; of the last sandbox if
    others died. Empty where the provider has no audit, or the verifier a sandbox of its own."""
    wall_seconds: float = 0.0
    """Wall time from admission to the end of verification."""
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by phase: `sandbox`, `agent`, `verify`, and what the driver adds."""

    @property
    def num_sampled(self) -> int:
        """Tokens sampled by the policy over all sequences."""
        return sum(sequence.num_sampled for sequence in self.sequences)

    @property
    def num_tool_calls(self) -> int:
        """Tool calls made over all turns."""
        return sum(len(turn.tool_calls) for turn in self.turns)

    @property
    def num_failed_tool_calls(self) -> int:
        """Tool calls that were answered with an error."""
        return sum(call.is_error for turn in self.turns for call in turn.tool_calls)

    @model_validator(mode="after")
    def _no_reward_is_invented(self) -> Self:
        if self.outcome.is_infrastructure and self.reward is not None:
            msg = (
                f"trial {self.trial_id}: outcome {self.outcome} is infrastructure and cannot carry reward {self.reward}"
            )
            raise ValueError(msg)
        return self
