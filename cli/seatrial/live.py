"""The live view of a run, drawn from the driver's progress."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seatrial_api.progress import Progress, StageProgress
from seatrial_api.stage_report import GateResult, StageResult

_MARKS = {
    StageResult.PASSED: ("✓", "green"),
    StageResult.GATE_FAILED: ("✗", "red"),
    StageResult.GUARDED: ("!", "yellow"),
    StageResult.FAILED: ("✗", "red"),
    StageResult.INTERRUPTED: ("‖", "yellow"),
}

_HEADLINES = (
    ("reward", "reward", "{:.3f}"),
    ("pass_rate", "pass rate", "{:.1%}"),
    ("validation_pass_at_1", "validation pass@1", "{:.1%}"),
    ("staleness_mean", "staleness, mean", "{:.2f} steps"),
    ("staleness_max", "staleness, max", "{:.0f} steps"),
    ("logprob_abs_diff", "logprob difference", "{:.4f}"),
    ("mismatch_kl", "mismatch KL", "{:.2e}"),
    ("entropy", "entropy", "{:.3f} nats"),
    ("engine_tokens_per_second", "engine", "{:.0f} tokens/s"),
    ("kv_cache_usage", "KV cache used", "{:.0%}"),
    ("prefix_cache_hit_rate", "prefix cache hits", "{:.0%}"),
    ("step_seconds", "step", "{:.1f} s"),
    ("sync_paused_seconds", "pause for weights", "{:.3f} s"),
    ("error_rate", "error rate", "{:.1%}"),
    ("cost_dollars", "cost", "${:.2f}"),
)


def render(progress: Progress) -> RenderableType:
    """The whole view."""
    elapsed = timedelta(seconds=round(progress.elapsed_seconds))
    title = f"{progress.run} · {elapsed}"
    body = Group(_stages(progress.stages), Text(), _bar(progress), Text(), _columns(progress))
    return Panel(body, title=title, title_align="left", border_style="blue")


def gate_line(gate: GateResult) -> Text:
    """One gate in one line: measured value against bound."""
    sign = "≤" if gate.direction == "AtMost" else "≥"
    value = "not measured" if gate.value is None else f"{gate.value:.4g}"
    mark, colour = ("✓", "green") if gate.passed else ("✗", "red")
    return Text.assemble(
        (f"{mark} ", colour), f"{gate.name}: {value} {sign} {gate.bound:.4g}", (f"  {gate.detail}", "dim")
    )


def result_mark(result: StageResult | None, *, is_running: bool) -> tuple[str, str]:
    """Sign and colour of a stage that ended so, runs, or is still to come."""
    if result is not None:
        return _MARKS[result]
    return ("▸", "blue") if is_running else ("·", "dim")


def _stages(stages: list[StageProgress]) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage in stages:
        mark, colour = result_mark(stage.result, is_running=bool(stage.seconds))
        seconds = "" if stage.seconds is None else f"{stage.seconds:.0f} s"
        result = stage.result.value if stage.result else "running" if stage.seconds else ""
        table.add_row(Text(mark, colour), Text(stage.name, "bold"), Text(result, colour), seconds)
        for gate in stage.gates:
            table.add_row("", gate_line(gate))
    return table


def _bar(progress: Progress) -> RenderableType:
    remaining = progress.estimated_remaining_seconds
    eta = "" if remaining is None else f"{timedelta(seconds=round(remaining))} left"
    counts = f"{progress.step}/{progress.of} {progress.unit}" if progress.of else ""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    table.add_row(Text(progress.stage, "bold"), ProgressBar(total=100, completed=progress.percent), f"{counts} {eta}")
    table.add_row("", Text(progress.activity, "dim"), "")
    return table


def _columns(progress: Progress) -> Table:
    left = _facts(
        (label, pattern.format(progress.metrics[name]))
        for name, label, pattern in _HEADLINES
        if name in progress.metrics
    )
    ceilings = [(f"ceiling, {kind}", f"{value:.0f} trials") for kind, value in progress.ceilings.items()]
    sandboxes = [("sandboxes", progress.sandbox)] if progress.sandbox else []
    right = _facts(iter([("in flight", f"{progress.in_flight} trials"), *ceilings, *sandboxes]))
    errors = _facts((outcome, str(count)) for outcome, count in sorted(progress.outcomes.items()))
    table = Table.grid(padding=(0, 4))
    table.add_row(left, right, errors)
    return table


def _facts(pairs: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in pairs:
        table.add_row(Text(label, "dim"), value)
    return table


@dataclass
class PlainView:
    """For pipes and logs: a line whenever something worth a line changed."""

    console: Console
    _last: tuple[object, ...] = ()
    _sandbox: str = ""

    def update(self, progress: Progress) -> None:
        """Print a line if the stage, its step or its result changed, and one once it is known where trials run."""
        if progress.sandbox != self._sandbox:
            self._sandbox = progress.sandbox
            self.console.print(f"sandboxes: {progress.sandbox}", highlight=False, soft_wrap=True)
        done = [(stage.name, stage.result) for stage in progress.stages if stage.result]
        coarse = progress.step if progress.unit == "steps" else int(progress.percent) // 25
        now = (progress.stage, progress.activity if not progress.of else "", coarse, tuple(done))
        if now == self._last:
            return
        self._last = now
        facts = [
            f"{label} {pattern.format(progress.metrics[name])}"
            for name, label, pattern in _HEADLINES
            if name in progress.metrics
        ]
        counts = f"{progress.step}/{progress.of} {progress.unit}" if progress.of else progress.activity
        line = f"{progress.elapsed_seconds:6.0f} s  {progress.stage:<12} {counts:<16} {' · '.join(facts[:6])}"
        self.console.print(line, highlight=False, soft_wrap=True)
