"""A plan, drawn for a terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial import plan_layout_view
from seatrial.plan import Plan

_NUMBERS = frozenset({"nodes", "trials", "in flight", "hours", "cost"})


def render(plan: Plan) -> RenderableType:
    """The whole plan."""
    parts: list[RenderableType] = [_heading(plan), _objects(plan), _stages(plan), _ceilings(plan)]
    if plan.layout is not None:
        parts.append(plan_layout_view.render(plan.layout))
    parts.append(_cost(plan))
    if plan.notes:
        parts.append(_bullets("Worth a look", plan.notes, "yellow"))
    if plan.refusals:
        parts.append(_bullets(f"The {plan.launcher} launcher would not start", map(str, plan.refusals), "red"))
    return Group(*(item for part in parts for item in (part, Text())))


def _heading(plan: Plan) -> Text:
    split, gpus = plan.split, plan.gpus_per_node
    device = f"{gpus} GPUs" if gpus else "CPUs"
    nodes = (
        f"one node with {device}, shared by inference and training"
        if split.is_shared
        else f"{split.total} nodes with {device}: {split.inference} for inference, {split.train} for training"
    )
    return Text.assemble((plan.run, "bold"), f"  {nodes}")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    return table


def _objects(plan: Plan) -> Table:
    table = _table("Would be made", "kind", "name", "during", "with")
    for item in plan.objects:
        table.add_row(item.kind, item.name, item.when, item.detail)
    return table


def _stages(plan: Plan) -> Table:
    table = _table("Stages", "stage", "kind", "segment", "nodes", "trials", "in flight", "hours", "cost")
    for stage in plan.stages:
        table.add_row(
            stage.name,
            stage.kind,
            str(stage.segment),
            str(stage.nodes),
            "not known" if stage.trials is None else f"{stage.trials:,}",
            f"{stage.concurrency:,}",
            "" if stage.hours is None else f"{stage.hours:,.2f}",
            "" if stage.cost_dollars is None else f"${stage.cost_dollars:,.2f}",
        )
    return table


def _ceilings(plan: Plan) -> Table:
    table = _table("Ceilings on trials in flight", "ceiling", "trials", "why")
    ceilings = plan.ceilings
    table.add_row("algorithmic", f"{ceilings.algorithmic:,}", "(maxStalenessSteps + 1) x batchSize x groupSize")
    if ceilings.systems is None:
        table.add_row("systems", "", "KV tokens / mean trajectory tokens; known once the engines run")
    else:
        why = f"{ceilings.kv_tokens:,} KV tokens / {plan.shape.tokens:,.0f} tokens a trajectory"
        table.add_row("systems", f"{ceilings.systems:,}", why)
    if ceilings.configured is None:
        table.add_row("live", "", "async.concurrency Auto follows KV usage below both")
    else:
        table.add_row("live", f"{ceilings.configured:,}", "async.concurrency")
    return table


def _cost(plan: Plan) -> Text:
    shape = plan.shape
    return Text.assemble(
        (_cost_sentence(plan), "bold"),
        f"\nAssumes {shape.seconds:,.0f} s and {shape.tokens:,.0f} tokens a trial in {shape.turns:.0f} turns, and that "
        "generation is what bounds the time.",
    )


def _cost_sentence(plan: Plan) -> str:
    total, hourly = plan.cost_dollars, f"all nodes together ${plan.dollars_per_hour:,.2f} an hour."
    if total == 0:
        return "Cost not told: spec.cost has no price."
    if total is not None:
        return f"Cost about ${total:,.2f}; {hourly}"
    unknown = ", ".join(stage.name for stage in plan.stages if stage.cost_dollars is None)
    return f"Cost not known: of {unknown} the number of tasks is not known; give the sets a limit; {hourly}"


def _bullets(title: str, lines: Iterable[str], colour: str) -> Text:
    return Text.assemble((title, f"bold {colour}"), *(f"\n• {line}" for line in lines))
