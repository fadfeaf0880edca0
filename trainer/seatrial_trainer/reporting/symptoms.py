"""What looks broken in a world: signs of faulty tools in what they answered, even where no call failed.

    trajectories ──▶ by tool ──▶ signs in single calls (_SIGNS) ──┐
                 └─▶ offered, never called; found missing ────────┴──▶ suspicions, most trials first

An error that is told as one costs a few turns. What costs a run is a tool that fails without a word: agents learn to
avoid it, the reward falls a little, and no metric shows it. Every suspicion says by how much reward differs where it
occurs, so that what is harmless is told from what is not.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_trainer.evaluation.summary import UNKNOWN_TOOL
from seatrial_trainer.reporting.failures import signature, tool_calls, tool_name
from seatrial_trainer.reporting.packages import missing

_MIN_CALLS = 3
"""Fewer may be chance."""


class Symptom(StrEnum):
    """What kind of fault it looks like."""

    ANSWERS_NOTHING = "AnswersNothing"
    """The tool says nothing, and no error: an agent cannot know whether it worked."""
    TRACEBACK_AS_ANSWER = "TracebackAsAnswer"
    """The tool broke and calls that success."""
    RUNS_TOGETHER = "RunsTogether"
    """Words and numbers without a space between them: columns of a table collapsed."""
    TRUNCATED = "Truncated"
    """Answers are cut to their budget."""
    SAME_ERROR = "SameError"
    """One error over and over, in more than one task."""
    LATE_SUCCESS = "LateSuccess"
    """Agents fail with the tool before it works for them: its schema or description misleads."""
    MISSING = "Missing"
    """A package or command that agents reach for is not there."""
    NEVER_USED = "NeverUsed"
    """Offered in every trial, called in none."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One sign of a fault."""

    symptom: Symptom
    tool: str
    """`server_tool`; for something missing, its name."""
    calls: int
    """Calls that show it."""
    out_of: int
    """Calls of the tool; for something missing, of all tools."""
    trials: int
    """Trials in which it occurs; in which a tool that nobody called was offered."""
    detail: str
    """What it looks like, for a person."""
    reward_with: float | None
    """Mean reward of the trials in which it occurs; none without any."""
    reward_without: float | None
    """Mean reward of the others."""
    example: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    """A call and the trial that made it."""

    trial: Trajectory
    call: ToolCall


@dataclass(frozen=True, slots=True)
class _Sign:
    """A sign that a single call shows by itself."""

    symptom: Symptom
    is_shown: Callable[[ToolCall], bool]
    min_share: float
    """Part of a tool's calls from which on it is worth a person's look."""


def find_symptoms(trajectories: Sequence[Trajectory]) -> list[Suspicion]:
    """All that looks broken, what occurs in most trials first; tools that nobody called come last."""
    made: dict[str, list[_Made]] = defaultdict(list)
    for trajectory in trajectories:
        for call in tool_calls([trajectory]):
            if tool_name(call) != UNKNOWN_TOOL:
                made[tool_name(call)].append(_Made(trajectory, call))
    found = [
        *(one for name, calls in made.items() for one in _of_tool(name, calls, trajectories)),
        *_missing([one for calls in made.values() for one in calls], trajectories),
        *_never_used(trajectories, made.keys()),
    ]
    return sorted(found, key=lambda one: (one.symptom is Symptom.NEVER_USED, -one.trials, one.tool, one.symptom))


# --- signs of single calls


def answers_nothing(call: ToolCall) -> bool:
    """Whether a call that worked was answered with nothing to read."""
    return not call.is_error and call.result.strip() in {"", "None", "null", '""', "(the tool returned nothing)"}


def hides_a_traceback(call: ToolCall) -> bool:
    """Whether a traceback was passed off as an answer; what code that the agent wrote says is its own."""
    if call.is_error or (_arguments(call) or {}).keys() & {"code", "command", "cmd", "script"}:
        return False
    return "Traceback (most recent call last)" in call.result


def runs_together(call: ToolCall) -> bool:
    """Whether every fifth line with numbers has them joined to words or to each other: `Revenue1,204.501,310.20`."""
    lines = [line for line in call.result.splitlines() if any(sign.isdigit() for sign in line)]
    joined = sum(_JOINED.search(line) is not None for line in lines)
    return not call.is_error and joined > 1 and joined >= len(lines) / 5


def is_truncated(call: ToolCall) -> bool:
    """Whether an answer was cut to a budget."""
    return _CUT.search(call.result) is not None


_JOINED = re.compile(r"[A-Za-z]{3,}\d+[.,]\d|\.\d{2}\d{1,3}(,\d{3})*\.\d{2}|\d[.,]\d+[A-Za-z]{4,}")
_CUT = re.compile(r"\[\.\.\. \d+ (characters cut|bytes left out)")
_SIGNS = (
    _Sign(Symptom.ANSWERS_NOTHING, answers_nothing, min_share=0.2),
    _Sign(Symptom.TRACEBACK_AS_ANSWER, hides_a_traceback, min_share=0.0),
    _Sign(Symptom.RUNS_TOGETHER, runs_together, min_share=0.1),
    _Sign(Symptom.TRUNCATED, is_truncated, min_share=0.1),
)


# --- tools


def _of_tool(name: str, made: Sequence[_Made], trajectories: Sequence[Trajectory]) -> Iterable[Suspicion]:
    for sign in _SIGNS:
        shown = [one for one in made if sign.is_shown(one.call)]
        if len(shown) >= _MIN_CALLS and len(shown) >= sign.min_share * len(made):
            yield _suspicion(sign.symptom, name, shown, len(made), _opening(shown[0].call), trajectories)
    yield from _same_errors(name, made, trajectories)
    yield from _late_success(name, made, trajectories)


def _same_errors(name: str, made: Sequence[_Made], trajectories: Sequence[Trajectory]) -> Iterable[Suspicion]:
    groups: dict[str, list[_Made]] = defaultdict(list)
    for one in made:
        if one.call.is_error:
            groups[signature(one.call.result)].append(one)
    for text, failed in groups.items():
        if len({one.trial.task for one in failed}) > 1 and len(failed) >= max(_MIN_CALLS, len(made) / 10):
            shapes = sorted({argument_shape(one.call) for one in failed})
            detail = f"{text}  called with {shapes[0]}" + (f" and {len(shapes) - 1} more shapes" * (len(shapes) > 1))
            yield _suspicion(Symptom.SAME_ERROR, name, failed, len(made), detail, trajectories)


def _late_success(name: str, made: Sequence[_Made], trajectories: Sequence[Trajectory]) -> Iterable[Suspicion]:
    """Half of the trials that use a tool fail with it first, and then learn how."""
    by_trial: dict[str, list[_Made]] = defaultdict(list)
    for one in made:
        by_trial[one.trial.trial_id].append(one)
    wasted: list[_Made] = []
    for calls in by_trial.values():
        first = next((number for number, one in enumerate(calls) if not one.call.is_error), 0)
        wasted += calls[:first]
    trials = {one.trial.trial_id for one in wasted}
    if len(trials) >= _MIN_CALLS and len(trials) >= len(by_trial) / 2:
        detail = f"{len(wasted) / len(trials):.1f} failed calls before the first that works"
        yield _suspicion(Symptom.LATE_SUCCESS, name, wasted, len(made), detail, trajectories)


# --- what is not there


def _missing(made: Sequence[_Made], trajectories: Sequence[Trajectory]) -> Iterable[Suspicion]:
    lacked: dict[str, list[_Made]] = defaultdict(list)
    for one in made:
        for name in set(missing(one.call)):
            lacked[name].append(one)
    for name, shown in lacked.items():
        yield _suspicion(Symptom.MISSING, name, shown, len(made), _opening(shown[0].call), trajectories)


def _never_used(trajectories: Sequence[Trajectory], used: Iterable[str]) -> Iterable[Suspicion]:
    offered: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        for tool in {name for span in trajectory.given for name in _tool_names(span.tools)}:
            offered[tool].append(trajectory)
    for tool in offered.keys() - set(used):
        trials = offered[tool]
        detail = f"offered in {len(trials)} trials"
        if len(trials) >= _MIN_CALLS:
            yield Suspicion(Symptom.NEVER_USED, tool, 0, 0, len(trials), detail, _mean_reward(trials), None)


def _tool_names(tools: str) -> Iterable[str]:
    return (str(tool.get("function", tool).get("name", "")) for tool in json.loads(tools))


# --- words and figures


def argument_shape(call: ToolCall) -> str:
    """A call's arguments by name and JSON type: `{path: string, row: number}`."""
    arguments = _arguments(call)
    if arguments is None:
        return "no JSON object"
    return "{" + ", ".join(f"{name}: {_type_name(value)}" for name, value in sorted(arguments.items())) + "}"


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def _arguments(call: ToolCall) -> dict[str, object] | None:
    """A call's arguments; none if the model wrote something else than a JSON object."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


_OPENING_CHARS = 80


def _opening(call: ToolCall) -> str:
    text = " ".join(call.result.split())
    return f"answers begin {text[:_OPENING_CHARS]!r}" if text else "answers are empty"


def _suspicion(
    symptom: Symptom, tool: str, shown: Sequence[_Made], out_of: int, detail: str, trajectories: Sequence[Trajectory]
) -> Suspicion:
    trials = {one.trial.trial_id for one in shown}
    return Suspicion(
        symptom=symptom,
        tool=tool,
        calls=len(shown),
        out_of=out_of,
        trials=len(trials),
        detail=detail,
        reward_with=_mean_reward(one for one in trajectories if one.trial_id in trials),
        reward_without=_mean_reward(one for one in trajectories if one.trial_id not in trials),
        example=shown[0].call,
    )


def _mean_reward(trajectories: Iterable[Trajectory]) -> float | None:
    rewards = [one.reward for one in trajectories if one.reward is not None]
    return fmean(rewards) if rewards else None
