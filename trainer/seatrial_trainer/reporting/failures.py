"""Where trials and tool calls fail, and what audits found: pure summaries over trajectories."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seatrial_api.finding import Finding, FindingKind
from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_trainer.evaluation.summary import UNKNOWN_TOOL

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_SIGNATURE_CHARS = 120


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors that differ only in names and numbers."""

    signature: str
    """The error's text, with names and numbers replaced."""
    count: int
    example: ToolCall


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """How one tool fared."""

    name: str
    """`server_tool`."""
    calls: int
    errors: int
    mean_seconds: float
    error_groups: tuple[ErrorGroup, ...]
    """Most frequent first."""

    @property
    def error_rate(self) -> float:
        """Share of calls that were answered with an error."""
        return self.errors / self.calls


@dataclass(frozen=True, slots=True)
class OutcomeSummary:
    """How often trials ended in one way."""

    outcome: str
    is_infrastructure: bool
    count: int
    mean_reward: float | None
    """None for infrastructure outcomes."""
    details: tuple[tuple[str, int], ...]
    """What was said about it, most frequent first."""


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """What sandboxes' audits found of one kind."""

    kind: FindingKind
    trials: int
    """Trials in which there was some."""
    count: int
    details: tuple[tuple[str, int], ...]
    """What was said about it, most frequent first."""


def summarize_tools(trajectories: Iterable[Trajectory]) -> list[ToolSummary]:
    """Every tool that was called, the one with the most errors first."""
    calls: dict[str, list[ToolCall]] = defaultdict(list)
    for call in tool_calls(trajectories):
        calls[tool_name(call)].append(call)
    summaries = [_summarize_tool(name, made) for name, made in calls.items()]
    return sorted(summaries, key=lambda summary: (-summary.errors, -summary.calls, summary.name))


def summarize_outcomes(trajectories: Iterable[Trajectory]) -> list[OutcomeSummary]:
    """Every outcome that occurred, infrastructure first, then by number."""
    by_outcome: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_outcome[trajectory.outcome.value].append(trajectory)
    summaries = [_summarize_outcome(outcome, ended) for outcome, ended in by_outcome.items()]
    return sorted(summaries, key=lambda summary: (not summary.is_infrastructure, -summary.count))


def summarize_findings(trajectories: Iterable[Trajectory]) -> list[FindingSummary]:
    """Every kind that was found: acts of the agent before files that it wrote, then by number of trials."""
    by_kind: dict[FindingKind, list[tuple[str, Finding]]] = defaultdict(list)
    for trajectory in trajectories:
        for finding in trajectory.findings:
            by_kind[finding.kind].append((trajectory.trial_id, finding))
    summaries = [
        FindingSummary(
            kind=kind,
            trials=len({trial for trial, _ in found}),
            count=len(found),
            details=tuple(Counter(signature(f"{one.path} {one.detail}") for _, one in found).most_common()),
        )
        for kind, found in by_kind.items()
    ]
    return sorted(summaries, key=lambda summary: (not summary.kind.is_act, -summary.trials, summary.kind))


def tool_calls(trajectories: Iterable[Trajectory]) -> Iterator[ToolCall]:
    """Every tool call in order."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            yield from turn.tool_calls


def tool_name(call: ToolCall) -> str:
    """`server_tool`, or a stand-in for a tool that does not exist."""
    return f"{call.server}_{call.tool}" if call.server else UNKNOWN_TOOL


def signature(text: str) -> str:
    """An error's text without the names and numbers that vary from case to case."""
    line = " ".join(text.split())
    return _NUMBER.sub("#", _QUOTED.sub("'…'", line))[:_SIGNATURE_CHARS]


def _summarize_tool(name: str, calls: list[ToolCall]) -> ToolSummary:
    failed = [call for call in calls if call.is_error]
    groups: dict[str, list[ToolCall]] = defaultdict(list)
    for call in failed:
        groups[signature(call.result)].append(call)
    by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
    return ToolSummary(
        name=name,
        calls=len(calls),
        errors=len(failed),
        mean_seconds=sum(call.duration_seconds for call in calls) / len(calls),
        error_groups=tuple(ErrorGroup(text, len(group), group[0]) for text, group in by_size),
    )


def _summarize_outcome(outcome: str, trajectories: list[Trajectory]) -> OutcomeSummary:
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    details = Counter(signature(trajectory.detail) for trajectory in trajectories if trajectory.detail)
    return OutcomeSummary(
        outcome=outcome,
        is_infrastructure=trajectories[0].outcome.is_infrastructure,
        count=len(trajectories),
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        details=tuple(details.most_common()),
    )
