"""What `seatrial run` prints when a run has ended."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial import evaluation_view
from seatrial.live import gate_line
from seatrial_api.ceilings import dollars
from seatrial_api.spec.operations import CostSpec
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_trainer.reporting.changes import Change
from seatrial_trainer.reporting.results import read_usage
from seatrial_trainer.reporting.token_costs import TokenLine, token_lines
from seatrial_trainer.storage.run_storage import RunStorage


def print_summary(reports: Sequence[StageReport], console: Console) -> None:
    """Stages with their gates, the time each took, and held-out results before and after."""
    for report in reports:
        style = "green" if report.result is StageResult.PASSED else "red"
        console.print(
            Text.assemble((report.result.value, style), " ", (report.stage, "bold"), f"  {report.message}"),
            soft_wrap=True,
        )
        for gate in report.gates:
            console.print("  ", gate_line(gate), soft_wrap=True)
    console.print()
    evaluated = [report for report in reports if report.evaluations]
    if len(evaluated) == 1:
        console.print(evaluation_view.render(evaluated[0].evaluations))
    elif evaluated:
        console.print(before_and_after(evaluated[0], evaluated[-1]))
    console.print(time_budget(reports))


def print_usage(folder: Path, prices: CostSpec, console: Console) -> None:
    """What a run has used up over all its attempts, with its cost where there are prices."""
    if lines := token_lines(list(RunStorage(folder).reports()), prices):
        console.print(token_table(lines))
    used = read_usage(folder)
    cost = dollars(used, prices)
    tokens = f"{used.completion_tokens:,.0f} tokens sampled, {used.prompt_tokens:,.0f} read and "
    tokens += f"{used.cached_prompt_tokens:,.0f} from the prefix cache"
    text = f"used: {used.node_hours:.3f} node hours, {tokens}"
    console.print(f"{text}; ${cost:.2f}" if cost else text, soft_wrap=True, highlight=False)


def token_table(lines: Sequence[TokenLine]) -> Table:
    """Tokens of trials by stage, harness and price tier, with their cost where there are prices."""
    table = Table(title="Tokens of trials", title_justify="left")
    for name in ("stage", "harness"):
        table.add_column(name)
    for name in ("cached prompt", "computed prompt", "sampled", "cache hits"):
        table.add_column(name, justify="right")
    table.add_column("computed again")
    for line in lines:
        use = line.use
        tiers = (
            (use.cached_prompt_tokens, line.cached_dollars),
            (use.prompt_tokens, line.prompt_dollars),
            (use.completion_tokens, line.completion_dollars),
        )
        cells = (f"{tokens:,}" + (f"  ${cost:.2f}" if cost else "") for tokens, cost in tiers)
        table.add_row(line.stage, use.harness, *cells, line.hit_rate, line.read_again)
    return table


def before_and_after(first: StageReport, last: StageReport) -> Table:
    """What two evaluations measured alike, and the change."""
    after = {(result.name, result.harness): result for result in last.evaluations}
    both = [(one, after[one.name, one.harness]) for one in first.evaluations if (one.name, one.harness) in after]
    lines = [Change(old.name, old.harness, old.pass_at_1, new.pass_at_1, new.gain) for old, new in both]
    return evaluation_view.render_changes("Before and after, 95 % intervals", first.stage, last.stage, lines)


def time_budget(reports: Sequence[StageReport]) -> Table:
    """Seconds by stage, and by phase inside a stage."""
    table = Table(title="Time", title_justify="left")
    table.add_column("stage")
    table.add_column("total", justify="right")
    table.add_column("of it")
    for report in reports:
        phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.phase_seconds.items())
        table.add_row(report.stage, str(timedelta(seconds=round(report.seconds))), phases)
    total = sum(report.seconds for report in reports)
    table.add_row("all", str(timedelta(seconds=round(total))), "", style="bold")
    return table
