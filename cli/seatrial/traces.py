"""`seatrial traces`: choose trajectories of a run, summarise how they ended, show some."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial_api.trajectory import Trajectory
from seatrial_trainer.reporting.comparison import Change, Comparison
from seatrial_trainer.reporting.failures import FindingSummary, summarize_findings, summarize_outcomes, summarize_tools
from seatrial_trainer.reporting.symptoms import Suspicion, find_symptoms

_SHOWN_ERRORS = 3
_SHOWN_CHARS = 2_000


def print_traces(trajectories: Sequence[Trajectory], console: Console, *, show: int) -> None:
    """Summaries of the chosen trajectories, then some of them turn by turn.

    Args:
        trajectories: The chosen ones.
        console: Where to print.
        show: How many to print in full.
    """
    if not trajectories:
        console.print("no stored trajectory meets these conditions")
        return
    console.print(_outcomes(trajectories))
    if suspicions := find_symptoms(trajectories):
        console.print(_suspicions(suspicions, "What looks broken"))
    console.print(_tools(trajectories))
    if findings := summarize_findings(trajectories):
        console.print(_findings(findings))
    for trajectory in trajectories[:show]:
        console.print(_trajectory(trajectory), soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """What differs between two selections of trajectories.

    Args:
        comparison: From the other selection to this one.
        console: Where to print.
    """
    gain = comparison.gain
    told = "no task was tried by both"
    if gain is not None:
        told = f"{gain.mean:+.3f}, 95 % interval {gain.low:+.3f} to {gain.high:+.3f} over {gain.count} tasks of both"
    console.print(f"pass@1: {told}", highlight=False)
    console.print(_changes("Behaviour", comparison.behaviour, "{:.2f}"))
    console.print(_changes("Outcomes", comparison.outcomes, "{:.1%}"))
    console.print(_changes("Calls that failed", comparison.tools, "{:.1%}"))
    if comparison.appeared:
        console.print(_suspicions(comparison.appeared, "Looks broken now"))
    if comparison.gone:
        console.print(_suspicions(comparison.gone, "Looked broken before"))


def _changes(title: str, changes: Sequence[Change], form: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("", "before", "after", "change"):
        table.add_column(name, justify="right" if name else "left")
    for one in changes:
        sides = ["" if value is None else form.format(value) for value in (one.before, one.after)]
        has_both = one.before is not None and one.after is not None
        difference = (one.after or 0.0) - (one.before or 0.0)
        table.add_row(Text(one.name), *sides, form.replace(":", ":+").format(difference) if has_both else "")
    return table


def _outcomes(trajectories: Sequence[Trajectory]) -> Table:
    table = Table(title=f"{len(trajectories)} trajectories", title_justify="left")
    for name in ("outcome", "trials", "mean reward", "what was said"):
        table.add_column(name, justify="right" if name in {"trials", "mean reward"} else "left")
    for outcome in summarize_outcomes(trajectories):
        reward = "" if outcome.mean_reward is None else f"{outcome.mean_reward:.3f}"
        said = "\n".join(f"{count} x {text}" for text, count in outcome.details[:_SHOWN_ERRORS])
        style = "red" if outcome.is_infrastructure else ""
        table.add_row(Text(outcome.outcome, style), str(outcome.count), reward, Text(said))
    return table


def _suspicions(suspicions: Sequence[Suspicion], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("sign", "tool", "calls", "trials", "reward with", "and without", "what it looks like"):
        is_text = name in {"sign", "tool", "what it looks like"}
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name == "tool")
    for one in suspicions:
        rewards = ("" if mean is None else f"{mean:.3f}" for mean in (one.reward_with, one.reward_without))
        calls = f"{one.calls} of {one.out_of}" if one.out_of else ""
        table.add_row(one.symptom, Text(one.tool), calls, str(one.trials), *rewards, Text(one.detail))
    return table


def _tools(trajectories: Sequence[Trajectory]) -> Table:
    table = Table(title="Tools", title_justify="left")
    for name in ("tool", "calls", "failed", "mean time", "most frequent errors"):
        table.add_column(name, justify="left" if name in {"tool", "most frequent errors"} else "right")
    for tool in summarize_tools(trajectories):
        errors = "\n".join(f"{group.count} x {group.signature}" for group in tool.error_groups[:_SHOWN_ERRORS])
        table.add_row(
            tool.name, str(tool.calls), f"{tool.error_rate:.1%}", f"{1000 * tool.mean_seconds:.1f} ms", Text(errors)
        )
    return table


def _findings(summaries: Sequence[FindingSummary]) -> Table:
    table = Table(title="What sandboxes' audits found", title_justify="left")
    for name in ("kind", "trials", "findings", "most frequent"):
        table.add_column(name, justify="right" if name in {"trials", "findings"} else "left")
    for finding in summaries:
        said = "\n".join(f"{count} x {text}" for text, count in finding.details[:_SHOWN_ERRORS])
        style = "red" if finding.kind.is_act else ""
        table.add_row(Text(finding.kind, style), str(finding.trials), str(finding.count), Text(said))
    return table


def _trajectory(trajectory: Trajectory) -> Text:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:.2f}"
    text = Text.assemble(
        ("\n" + trajectory.trial_id, "bold"),
        f"  {trajectory.task}  {trajectory.outcome.value}  reward {reward}\n",
        (f"{trajectory.detail}\n" if trajectory.detail else "", "dim"),
        *((f"{finding.kind}  {finding.path} {finding.detail}\n", "yellow") for finding in trajectory.findings),
    )
    for number, turn in enumerate(trajectory.turns, start=1):
        text.append(f"turn {number}: ", "blue")
        text.append(f"{turn.text[:_SHOWN_CHARS]}\n")
        for call in turn.tool_calls:
            text.append("  → ", "red" if call.is_error else "green")
            text.append(f"{call.result[:_SHOWN_CHARS]}\n")
    return text
