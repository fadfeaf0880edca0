"""What the scheduler makes of a run in virtual time, drawn for a terminal."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial_api.base import Auto
from seatrial_trainer.scheduling.advice import TOLERANCE, Advice


def render(advice: Advice, asked: Auto | int) -> RenderableType:
    """The concurrencies that were tried, and what follows from them.

    Args:
        advice: What the simulation found.
        asked: `async.concurrency`.
    """
    table = Table(
        title="Simulated concurrency", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in ("in flight", "a step takes", "groups' age", "waits for due groups", "trainer at work"):
        table.add_column(column, justify="right")
    for concurrency, figures in advice.by_concurrency.items():
        slowdown = advice.slowdown(concurrency)
        table.add_row(
            f"{concurrency:,}",
            "the least time" if slowdown < 0.005 else f"{slowdown:.0%} longer",
            f"{figures.mean_staleness:.1f} steps",
            f"{figures.held:.0%}",
            f"{figures.trainer_used:.0%}",
            style="bold" if concurrency == advice.concurrency else "",
        )
    sentences = [f"{advice.describe()}."]
    if isinstance(asked, int) and advice.slowdown(min(asked, max(advice.by_concurrency))) > TOLERANCE:
        sentences.append(f"async.concurrency is {asked:,}: raise it to {advice.concurrency:,} if memory allows.")
    return Group(table, Text(" ".join(sentences)), Text())
