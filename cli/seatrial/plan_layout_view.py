"""A layout of training ranks, drawn for a terminal."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial.plan_layout import PlannedLayout
from seatrial_trainer.policy.sizing.layouts import num_expert_replicas, num_replicas
from seatrial_trainer.policy.sizing.memory import GIB, RankMemory


def render(layout: PlannedLayout) -> RenderableType:
    """Sizes, memory of a rank by stage, and what the pipeline wastes."""
    title = Text("Training ranks", style="bold")
    return Group(title, Text("\n".join(_sentences(layout))), *([_memory(layout)] if layout.memories else []))


def _sentences(layout: PlannedLayout) -> Iterator[str]:
    trainer, sizes = layout.trainer, layout.trainer.parallelism
    yield (
        f"{trainer.ranks} = tensor {sizes.tensor} x pipeline {sizes.pipeline} x context {sizes.context} x "
        f"{num_replicas(trainer)} replicas; experts over {sizes.expert} x {sizes.expert_tensor} ranks of a stage, "
        f"{num_expert_replicas(trainer)} times"
    )
    padding = f"; the vocabulary is filled up with {layout.padding} tokens" if layout.padding else ""
    yield f"{layout.num_parameters / 1e9:,.1f} billion parameters in the language model{padding}"
    yield (
        f"about {layout.num_microbatches:,} micro-batches a replica and step; {layout.idle_share:.0%} of a step waits "
        "for the pipeline"
    )
    if (largest := layout.largest) is not None:
        of = f" of {_gib(layout.gpu_bytes)}" if layout.gpu_bytes is not None else ""
        host = f", and {_gib(largest.host)} of its node's memory for the optimiser" if largest.host else ""
        yield f"a rank needs about {_gib(largest.total)}{of} GiB{host}"


def _memory(layout: PlannedLayout) -> Table:
    table = Table(
        title="GiB of a rank, by stage",
        title_justify="left",
        caption="kept: activations until their backward pass; at work: the layer of the moment",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("stage", "layers", "weights", "grads", "optimiser", "kept", "at work", "head", "all"):
        table.add_column(column, justify="right")
    for memory in layout.memories:
        table.add_row(str(memory.stage), str(memory.num_layers), *map(_gib, _parts(memory)))
    return table


def _parts(memory: RankMemory) -> tuple[int, ...]:
    held = (memory.weights, memory.gradients, memory.optimizer, memory.activations)
    return (*held, memory.working, memory.logits, memory.total)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.1f}"
