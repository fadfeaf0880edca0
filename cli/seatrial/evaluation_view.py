"""Results of one evaluation on a terminal: a line for each setting to compare them, then each in full."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial_api.stage_report import Estimate, EvaluationResult, ToolUse
from seatrial_trainer.reporting.changes import Change

_SHOWN_TOOLS = 20
_HABITS = (
    ("turns", "turns", "{:.1f} a trial"),
    ("tokens", "tokens sampled", "{:,.0f} a trial"),
    ("tokens_per_turn", "tokens a turn", "{:,.0f}"),
    ("prompt_tokens", "tokens read", "{:,.0f} a trial"),
    ("tool_calls", "tool calls", "{:.1f} a trial"),
    ("tool_success_rate", "tool success", "{:.1%}"),
    ("code_share", "share of code", "{:.1%}"),
    ("charged_seconds", "charged time", "{:.1f} s a trial"),
)


def render(results: Sequence[EvaluationResult]) -> RenderableType:
    """What was solved, by domain and by tool, and how agents worked."""
    return Group(_overview(results), *(part for result in results for part in (Text(), _details(result))))


def render_changes(title: str, before: str, after: str, found: Iterable[Change]) -> Table:
    """pass@1 of each setting before and after, under these two names, and the change."""
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("measured on")
    for name in (f"pass@1, {before}", f"pass@1, {after}", "change in points"):
        table.add_column(name, justify="right")
    for one in found:
        cells = percent(one.before), percent(one.after), _points(one)
        table.add_row(f"{one.name}\n{one.harness}", *(cell.replace("  ", "\n") for cell in cells))
    return table


def percent(estimate: Estimate) -> str:
    """A share with its interval."""
    return f"{estimate.mean:.1%}  [{estimate.low:.1%}, {estimate.high:.1%}]"


def _points(change: Change) -> str:
    if gain := change.gain:
        return f"{100 * gain.mean:+.1f}  [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    return f"{100 * (change.after.mean - change.before.mean):+.1f}"


def _overview(results: Sequence[EvaluationResult]) -> Table:
    most = max((k for result in results for k in result.pass_at_k), default=1)
    table = Table(title="Results, 95 % intervals over tasks", title_justify="left")
    for name in ("measured on", "harness"):
        table.add_column(name)
    for name in ("pass@1", f"pass@{most}") if most > 1 else ("pass@1",):
        table.add_column(name, justify="right", no_wrap=True)
    for one in results:
        best = one.pass_at_k.get(most) if most > 1 else None
        table.add_row(one.name, one.harness, percent(one.pass_at_1), *([percent(best)] if best else []))
    return table


def _details(result: EvaluationResult) -> Table:
    trials = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items()))
    title = f"{result.name}, {result.harness}: {result.pass_at_1.count} tasks, {trials}"
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for shown, value, note in (*_solved(result), *_behaviour(result), *_tools(result)):
        table.add_row(f"  {shown}", value, Text(note, "dim"))
    return table


def _solved(result: EvaluationResult) -> Iterator[tuple[str, str, str]]:
    for k, estimate in {1: result.pass_at_1, **result.pass_at_k}.items():
        yield f"pass@{k}", percent(estimate), ""
    reward = result.mean_reward
    yield "mean reward", f"{reward.mean:.3f}  [{reward.low:.3f}, {reward.high:.3f}]", ""
    for domain, estimate in result.by_domain.items() if len(result.by_domain) > 1 else ():
        yield f"pass@1 in {domain}", percent(estimate), f"tasks: {estimate.count}"


def _behaviour(result: EvaluationResult) -> Iterator[tuple[str, str, str]]:
    for name, title, text in _HABITS:
        if name in result.behaviour:
            yield title, text.format(result.behaviour[name]), ""


def _tools(result: EvaluationResult) -> Iterator[tuple[str, str, str]]:
    for tool, use in list(result.by_tool.items())[:_SHOWN_TOOLS]:
        yield tool, _calls(use), f"{use.passed} of {use.trials} trials passed"


def _calls(use: ToolUse) -> str:
    return f"{use.calls} calls, {1 - use.failed / use.calls:.1%} worked"
