"""The agent loop around the model, and its limits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Fraction, NonNegative, Positive, Seconds
from seatrial_api.rules import Rule, RuledModel


class ToolResultLimit(RuledModel):
    """Long tool results keep their head and their tail."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.headChars + self.tailChars <= self.maxChars",
            "headChars {self.headChars} and tailChars {self.tailChars} together exceed maxChars {self.maxChars}, so "
            "that cutting would lengthen; lower them or raise maxChars",
            ".maxChars",
        ),
    )

    max_chars: Positive = 42_000
    """Text blocks longer than this are cut."""
    head_chars: Positive = 28_000
    """Characters kept from the start."""
    tail_chars: NonNegative = 14_000
    """Characters kept from the end."""


class ToolBudget(RuledModel):
    """What one tool may do in a trial."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.maxCalls) || has(self.timeoutSeconds)",
            "a budget of {self.tool} limits nothing; set maxCalls, timeoutSeconds or both",
        ),
    )

    tool: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?-]+$", max_length=128)]
    """Name of the tool as the model knows it, `{server}_{tool}`; `*` and `?` match any letters."""
    max_calls: NonNegative | None = None
    """Calls in one trial, of each tool that matches; a further one is answered with what is left."""
    timeout_seconds: Seconds | None = None
    """Time of one call; one that takes longer is given up, and the model is told."""


class HarnessLimits(RuledModel):
    """Budgets and timeouts of one trial."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.tools.all(t, !has(t.timeoutSeconds) || t.timeoutSeconds < self.toolCallTimeoutSeconds)",
            "a tool's timeoutSeconds has no effect unless it is below toolCallTimeoutSeconds "
            "{self.toolCallTimeoutSeconds}, at which a call is a fault of its server; lower it, or raise the latter",
            ".tools",
        ),
        Rule(
            "self.agentTimeoutSeconds <= self.wallTimeoutSeconds",
            "wallTimeoutSeconds {self.wallTimeoutSeconds} ends a trial before its agentTimeoutSeconds "
            "{self.agentTimeoutSeconds} are spent; raise it, or lower agentTimeoutSeconds",
            ".wallTimeoutSeconds",
        ),
    )

    max_steps: Positive = 100
    """Turns an agent may take while training."""
    max_eval_steps: Positive = 250
    """Turns an agent may take in Evaluate stages."""
    max_turn_tokens: Positive = 50_000
    """Tokens of one turn."""
    agent_timeout_seconds: Seconds = 3600.0
    """Time charged to the agent; waiting for infrastructure is not charged."""
    setup_timeout_seconds: Seconds = 1200.0
    """Time to a sandbox whose tools answer."""
    tool_call_timeout_seconds: Seconds = 600.0
    """Time of one tool call; one that takes longer is an infrastructure outcome."""
    tools: list[ToolBudget] = Field(default_factory=list, max_length=64)
    """Budgets of single tools; the first whose `tool` matches a name holds."""
    engine_call_timeout_seconds: Seconds = 1800.0
    """Time of one engine call."""
    verifier_timeout_seconds: Seconds = 600.0
    """Time of the verifier, unless the task sets its own."""
    wall_timeout_seconds: Seconds = 6000.0
    """Wall-clock deadline of the whole trial; running into it is an infrastructure outcome."""
    tool_result: ToolResultLimit = ToolResultLimit()
    """What is kept of a long tool result."""
    context_nudge_fraction: Fraction = 0.2
    """When this share of the context is left the agent is told once to finish, or with `compaction` the native agent
    to sum up; 0 switches it off."""
    max_parse_repairs: NonNegative = 2
    """How often a malformed tool call is answered with an explanation instead of ending the trial."""


class Sampling(ApiModel):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Temperature; 0 is greedy. Training needs 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus mass. Training needs 1."""


BUILT_IN_HARNESSES = (
    "archipelago",
    "opencode",
    "terminus-2",
    "mini-swe-agent",
    "codex",
    "claude-code",
    "single-turn",
)

COMPACTING_HARNESSES = ("archipelago", "opencode", "terminus-2", "codex", "claude-code")
"""Harnesses whose agent can sum up a conversation and go on from that."""

PROGRAM_HARNESSES = ("opencode", "mini-swe-agent", "codex", "claude-code")
"""Harnesses whose agent is a program in the sandbox."""

HARNESS_PATTERN = rf"^({'|'.join(BUILT_IN_HARNESSES)}|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$"

_OWN_TOOLS_PATTERN = "^(archipelago|.+:.+)$"
"""Harnesses that may be ours, with the task's tools."""

HarnessName = Annotated[str, Field(min_length=1, max_length=256)]
"""A harness of ours, or `module:Class`."""


class HarnessSpec(RuledModel):
    """Which agent loop runs the model."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.name.matches('{HARNESS_PATTERN}')",
            f"no harness is called {{self.name}}; choose one of {', '.join(BUILT_IN_HARNESSES)}, or name your own as "
            "module:Class",
            ".name",
        ),
        Rule(
            "self.sampling.temperature == 1.0 && self.sampling.topP == 1.0",
            "training needs temperature 1 and topP 1, not {self.sampling.temperature} and {self.sampling.topP}: the "
            "loss takes the engine's logprobs as the policy's own; sample otherwise in Evaluate stages only",
            ".sampling",
        ),
        Rule(
            f"self.limits.tools.size() == 0 || self.name.matches('{_OWN_TOOLS_PATTERN}')",
            "budgets of tools are what {self.name} cannot keep, whose tools are its own; remove them, or choose "
            "archipelago",
            ".limits.tools",
        ),
        Rule(
            f"!self.compaction || self.name.matches('^({'|'.join(COMPACTING_HARNESSES)})$')",
            "compaction is what {self.name} cannot do; remove it, or choose one of "
            f"{', '.join(COMPACTING_HARNESSES)}",
            ".compaction",
        ),
        Rule(
            "!self.compaction || self.name != 'archipelago' || self.limits.contextNudgeFraction > 0.0",
            "archipelago sums up when limits.contextNudgeFraction of the context is left, which is 0; set it, or "
            "remove compaction",
            ".limits.contextNudgeFraction",
        ),
        Rule(
            f"!self.notebook || self.name.matches('{_OWN_TOOLS_PATTERN}')",
            "a notebook is what {self.name} cannot have, whose tools are its own; remove it, or choose archipelago",
            ".notebook",
        ),
    )

    name: HarnessName = "archipelago"
    """`archipelago`, `opencode`, `terminus-2`, `mini-swe-agent`, `codex`, `claude-code`, `single-turn`,
    or `module:Class`."""
    limits: HarnessLimits = HarnessLimits()
    """Budgets and timeouts."""
    history: Literal["Keep", "AsTemplate"] = "Keep"
    """`Keep` never removes earlier tokens; `AsTemplate` starts a new sequence where the template rewrites them."""
    compaction: bool = False
    """Whether an agent that nears the end of its context sums up the conversation and goes on from that, in a sequence
    of its own; off, it ends there."""
    notebook: bool = False
    """Whether the agent has a todo list and notes, which are files in its sandbox and are shown to it again where a
    conversation begins anew; for `archipelago`."""
    sampling: Sampling = Sampling()
    """Sampling while training."""
