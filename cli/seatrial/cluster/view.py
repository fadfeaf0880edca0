"""An RLRun's status for a terminal: what `kubectl get rl` shows, and all that lies behind it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from seatrial.live import gate_line, result_mark
from seatrial_api.conditions import Condition, RunPhase
from seatrial_api.rlrun import RLRun
from seatrial_api.status import HeadlineMetrics, RLRunStatus, StageStatus

_COLOURS = {
    RunPhase.RUNNING: "blue",
    RunPhase.SUCCEEDED: "green",
    RunPhase.FAILED: "red",
    RunPhase.GUARDED: "yellow",
    RunPhase.SUSPENDED: "yellow",
}
_HEADLINES = (
    ("reward", "reward", "{:.3f}"),
    ("validation_pass_rate", "validation pass@1", "{:.1%}"),
    ("staleness_steps", "staleness", "{:.2f} steps"),
    ("logprob_diff", "logprob difference", "{:.4f}"),
    ("error_rate", "error rate", "{:.1%}"),
    ("trials_in_flight", "in flight", "{} trials"),
    ("prefix_cache_hit_rate", "prefix cache hits", "{:.0%}"),
    ("cost_dollars", "cost", "${:.2f}"),
)


def render(run: RLRun) -> RenderableType:
    """The whole status."""
    status = run.status or RLRunStatus()
    phase = status.phase or RunPhase.PENDING
    title = Text.assemble(
        f"{run.metadata.namespace}/{run.metadata.name} · ", (phase.value, _COLOURS.get(phase, "default"))
    )
    names = [stage.name for stage in run.spec.stages]
    parts = [_stages(names, status), _conditions(status.conditions), _facts(status)]
    body = Group(*(piece for part in parts if part.row_count for piece in (part, Text())))
    return Panel(body, title=title, title_align="left", border_style="blue")


def _stages(names: list[str], status: RLRunStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    begun = {stage.name: stage for stage in status.stages}
    for name in names:
        stage = begun.get(name)
        is_running = stage is not None and not stage.result and status.current is not None
        mark, colour = result_mark(stage.result if stage else None, is_running=is_running)
        word = "running" if is_running else "stopped" if stage else ""
        result = stage.result.value if stage and stage.result else word
        duration = _duration(stage, is_running=is_running)
        table.add_row(Text(mark, colour), Text(name, "bold"), Text(result, colour), duration)
        if stage and stage.message:
            table.add_row("", "", Text(stage.message, "dim"))
        for gate in stage.gates if stage else []:
            table.add_row("", "", gate_line(gate))
        if stage and stage.name == status.stage and is_running and status.progress:
            progress = status.progress
            left = progress.estimated_remaining_seconds
            remaining = "" if left is None else f", {timedelta(seconds=left)} left"
            table.add_row("", "", f"{progress.step}/{progress.of} ({progress.percent} %){remaining}")
    return table


def _duration(stage: StageStatus | None, *, is_running: bool) -> str:
    """How long a stage took, or has taken so far; empty where that is not known."""
    if stage is None or stage.started_at is None or not (stage.finished_at or is_running):
        return ""
    end = stage.finished_at or datetime.now(UTC)  # noqa: TID251  what a person looks at is now
    return str(timedelta(seconds=round((end - stage.started_at).total_seconds())))


def _conditions(conditions: list[Condition]) -> Table:
    table = Table.grid(padding=(0, 2))
    for condition in conditions:
        table.add_row(
            Text(condition.type, "bold"), condition.status, Text(condition.reason, "dim"), Text(condition.message)
        )
    return table


def _facts(status: RLRunStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in [*_headlines(status.metrics), *_places(status)]:
        table.add_row(Text(label, "dim"), value)
    return table


def _headlines(metrics: HeadlineMetrics | None) -> Iterator[tuple[str, str]]:
    for field, label, pattern in _HEADLINES:
        value = getattr(metrics, field, None)
        if value is not None:
            yield label, pattern.format(value)


def _places(status: RLRunStatus) -> Iterator[tuple[str, str]]:
    yield "attempt", f"{status.attempt} of segment {status.segment}"
    if status.sandbox:
        yield "sandbox", status.sandbox
    for kind in ("last", "best"):
        checkpoint = getattr(status.checkpoints, kind, None)
        if checkpoint is not None:
            yield f"{kind} checkpoint", f"step {checkpoint.step}, {checkpoint.uri}"
    for kind in ("progress", "metrics", "dashboard", "report"):
        address = getattr(status.endpoints, kind, None)
        if address:
            yield kind, address
