"""From trajectories to an `EvaluationResult`: what was solved, and how agents worked."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from seatrial_api.errors import TransientError
from seatrial_api.stage_report import Estimate, EvaluationResult, ToolUse
from seatrial_api.trajectory import ToolCall, Trajectory
from seatrial_trainer.evaluation.statistics import estimate_mean, estimate_pass_at_k, estimate_share

SOLVED = 1.0 - 1e-6
"""A trial passes when its reward reaches the verifier's full mark."""
UNKNOWN_TOOL = "(no such tool)"
"""Stands for every name that the model made up."""
_CODE_TOOLS = frozenset({"bash", "shell", "local_shell", "exec_command"})
"""What agents of others call a tool that runs code."""


class NothingGradedError(TransientError):
    """Infrastructure ended every trial of a measurement."""

    def __init__(self, *, name: str, trajectories: Sequence[Trajectory]) -> None:
        counts = Counter(trajectory.outcome.value for trajectory in trajectories)
        outcomes = ", ".join(f"{count} x {outcome}" for outcome, count in counts.most_common())
        detail = trajectories[-1].detail if trajectories else ""
        super().__init__(
            f"{name}: none of {len(trajectories)} trials could be graded ({outcomes}; most recently: "
            f"{detail or 'no detail'}); repair it and resume the run"
        )


def passed(trajectory: Trajectory) -> bool:
    """Whether the verifier gave full marks."""
    return trajectory.reward is not None and trajectory.reward >= SOLVED


def results_by_task(trajectories: Sequence[Trajectory]) -> dict[str, list[float]]:
    """1 or 0 for each graded try, by task; infrastructure outcomes are left out."""
    tries: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        if not trajectory.outcome.is_infrastructure:
            tries[trajectory.task].append(float(passed(trajectory)))
    return dict(tries)


def summarize(name: str, harness: str, trajectories: Sequence[Trajectory]) -> EvaluationResult:
    """Summarise the tries of one model on one task set under one sampling setting.

    Raises:
        NothingGradedError: if infrastructure ended every trial.
    """
    tries = results_by_task(trajectories)
    if not tries:
        raise NothingGradedError(name=name, trajectories=trajectories)
    graded = [trajectory for trajectory in trajectories if not trajectory.outcome.is_infrastructure]
    rewards: dict[str, list[float]] = defaultdict(list)
    domains: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in graded:
        rewards[trajectory.task].append(trajectory.reward or 0.0)
        domains[trajectory.domain].append(trajectory)
    num_tries = min(map(len, tries.values()))
    return EvaluationResult(
        name=name,
        harness=harness,
        pass_at_1=estimate_share(list(tries.values())),
        pass_at_k={k: estimate_pass_at_k(tries, k) for k in sorted({1, 2, 4, 8, 16, num_tries}) if k <= num_tries},
        mean_reward=estimate_mean(list(rewards.values())),
        by_domain={domain: _pass_at_1(tried) for domain, tried in sorted(domains.items())},
        by_tool=use_of_tools(graded),
        outcomes=dict(Counter(trajectory.outcome.value for trajectory in trajectories)),
        behaviour=behaviour(graded),
    )


def behaviour(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over trials; see `EvaluationResult.behaviour`."""
    count = max(1, len(trajectories))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    calls = [call for turn in turns for call in turn.tool_calls]
    tokens = sum(trajectory.num_sampled for trajectory in trajectories)
    return {
        "turns": len(turns) / count,
        "tokens": tokens / count,
        "tokens_per_turn": tokens / max(1, len(turns)),
        "prompt_tokens": sum(turn.start for turn in turns) / count,
        "tool_calls": len(calls) / count,
        "tool_success_rate": 1.0 - sum(call.is_error for call in calls) / len(calls) if calls else 1.0,
        "code_share": sum(map(_runs_code, calls)) / max(1, len(calls)),
        "charged_seconds": sum(trajectory.charged_seconds for trajectory in trajectories) / count,
    }


def use_of_tools(trajectories: Sequence[Trajectory]) -> dict[str, ToolUse]:
    """Use of each tool, the most called first.

    An agent of others tells no server. Of its tools, and of names without a server in general, those that never
    worked are taken for made up.
    """
    by_name: dict[str, list[tuple[Trajectory, ToolCall]]] = defaultdict(list)
    made_up: list[tuple[Trajectory, ToolCall]] = []
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for call in turn.tool_calls:
                by_name[f"{call.server}_{call.tool}" if call.server else call.tool].append((trajectory, call))
    for name, made in list(by_name.items()):
        if all(not call.server and call.is_error for _, call in made):
            made_up += by_name.pop(name)
    if made_up:
        by_name[UNKNOWN_TOOL] = made_up
    return {name: _use(made) for name, made in sorted(by_name.items(), key=lambda item: (-len(item[1]), item[0]))}


def _pass_at_1(trajectories: Sequence[Trajectory]) -> Estimate:
    return estimate_share(list(results_by_task(trajectories).values()))


def _use(made: Sequence[tuple[Trajectory, ToolCall]]) -> ToolUse:
    trials = Counter({trajectory.trial_id: passed(trajectory) for trajectory, _ in made})
    return ToolUse(
        calls=len(made),
        failed=sum(call.is_error for _, call in made),
        trials=len(trials),
        passed=sum(trials.values()),
    )


def _runs_code(call: ToolCall) -> bool:
    return call.server == "code" or (not call.server and call.tool.lower() in _CODE_TOOLS)
