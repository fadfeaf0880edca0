"""`seatrial plan`: every object that would be made, the ceilings and the cost, before anything is spent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.plan_inputs import count_tasks, kv_capacity, read_config
from seatrial.plan_layout import NOTHING_KNOWN, LayoutInputs, PlannedLayout, layout_notes, plan_layout
from seatrial.plan_objects import PlannedObject, cluster_objects, processes
from seatrial_api.ceilings import NodeSplit, Usage, algorithmic_ceiling, dollars, split_nodes, systems_ceiling
from seatrial_api.demand import TaskCounts, TrialShape, assumed_shape, concurrency_of, nodes_held, trials_of
from seatrial_api.errors import InvalidInputError
from seatrial_api.playbook import Segment, segments_of
from seatrial_api.refusals import Launcher, Refusal, refusals
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.spec.operations import StorageSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.checks import template_problems


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """What a stage takes."""

    name: str
    kind: str
    segment: int
    nodes: int
    """GPU nodes held."""
    trials: int | None
    """Trials at most; none while the number of tasks is not known."""
    concurrency: int
    """Trials in flight."""
    hours: float | None
    """Time if trials are as assumed and generation is what bounds it."""
    cost_dollars: float | None


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What bounds the trials in flight while training."""

    algorithmic: int
    systems: int | None
    """None until the engines tell how many tokens they hold."""
    kv_tokens: int | None
    configured: int | None
    """What `async.concurrency` says; none for `Auto`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known about a run before it starts."""

    run: str
    launcher: Launcher
    split: NodeSplit
    gpus_per_node: int
    segments: tuple[Segment, ...]
    objects: tuple[PlannedObject, ...]
    stages: tuple[PlannedStage, ...]
    ceilings: Ceilings
    shape: TrialShape
    """What a trial is assumed to be."""
    layout: PlannedLayout | None
    """How training ranks are laid out; none where that is not known, or each rank is alike."""
    dollars_per_hour: float
    """Price of all nodes."""
    notes: tuple[str, ...]
    """What a person may want to change."""
    refusals: tuple[Refusal, ...]
    """What the launcher cannot honour: it would not start."""

    @property
    def cost_dollars(self) -> float | None:
        """Cost of all stages; none if one is not known."""
        costs = [stage.cost_dollars for stage in self.stages]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def make_plan(
    run: RLRun,
    base_dir: Path,
    launcher: Launcher = "local",
    *,
    shape: TrialShape | None = None,
    kv_tokens: int | None = None,
    layout_inputs: LayoutInputs = NOTHING_KNOWN,
) -> Plan:
    """Plan a run; looks at task folders and the model's config where they are on this machine, and starts nothing.

    Args:
        run: The run.
        base_dir: Folder that relative paths start at: the manifest's.
        launcher: Who would start it.
        shape: What is known of the run's trials; a guess if empty.
        kv_tokens: Tokens that the KV caches of all engines hold, if known.
        layout_inputs: What is known of the training ranks.

    Raises:
        InvalidInputError: the given config cannot be read.
    """
    spec = run.spec
    assumed = shape or assumed_shape(spec)
    config = read_config(spec.model.source, base_dir, layout_inputs.model_config)
    layout, layout_note = _layout(spec, config, assumed, layout_inputs.gpu_memory_gib)
    kv_tokens = kv_tokens or kv_capacity(spec, config)
    systems = None if kv_tokens is None else systems_ceiling(kv_tokens, assumed.tokens)
    segments = tuple(segments_of(spec.stages, spec.topology.hold))
    algorithm, split = spec.algorithm, split_nodes(spec.topology)
    return Plan(
        run=run.metadata.name,
        launcher=launcher,
        split=split,
        gpus_per_node=spec.topology.gpus_per_node,
        segments=segments,
        objects=tuple(processes(run) if launcher == "local" else cluster_objects(run, segments)),
        stages=tuple(_stages(spec, segments, count_tasks(spec, base_dir), assumed, systems)),
        ceilings=Ceilings(
            algorithmic_ceiling(spec.async_.max_staleness_steps, algorithm.batch_size, algorithm.group_size),
            systems,
            kv_tokens,
            spec.async_.concurrency if isinstance(spec.async_.concurrency, int) else None,
        ),
        shape=assumed,
        layout=layout,
        dollars_per_hour=split.total * spec.cost.node_hour,
        notes=(*_notes(spec, launcher), *layout_note),
        refusals=(*_refusals(run, launcher), *(layout.problems if layout else ())),
    )


def _stages(
    spec: RLRunSpec, segments: tuple[Segment, ...], tasks: TaskCounts, shape: TrialShape, systems: int | None
) -> Iterator[PlannedStage]:
    by_stage = {name: segment for segment in segments for name in segment.stages}
    for stage in spec.stages:
        segment = by_stage[stage.name]
        trials, concurrency = trials_of(stage, spec, tasks), concurrency_of(stage, spec, systems)
        nodes = nodes_held(segment, spec)
        hours = cost = None
        if trials is not None:
            hours = trials / min(concurrency, max(1, trials)) * shape.seconds / 3600
            cost = dollars(shape.usage * trials + Usage(node_hours=nodes * hours), spec.cost)
        yield PlannedStage(stage.name, stage.kind, segment.index, nodes, trials, concurrency, hours, cost)


def _layout(
    spec: RLRunSpec, config: dict[str, Any] | None, trial: TrialShape, gpu_memory_gib: float
) -> tuple[PlannedLayout | None, list[str]]:
    """The layout of a run on megatron-core, and what there is to say where it is not known or does not fit."""
    if spec.trainer.backend != "megatron":
        return None, []
    if config is None:
        return None, ["the model's config.json is not on this machine: --model-config shows what each rank would need"]
    try:
        planned = plan_layout(spec, config, trial, gpu_memory_gib=gpu_memory_gib)
    except InvalidInputError as exc:
        return None, [str(exc)]
    return planned, list(layout_notes(planned))


def _refusals(run: RLRun, launcher: Launcher) -> tuple[Refusal, ...]:
    found = refusals(run.spec, launcher)
    return tuple(found if launcher == "local" else [*found, *template_problems(run, OperatorConfig())])


def _notes(spec: RLRunSpec, launcher: Launcher) -> Iterator[str]:
    topology, engines, split = spec.topology, spec.rollout.engines, split_nodes(spec.topology)
    gpus, engine_gpus = topology.gpus_per_node, engines.replicas * engines.tensor_parallel
    if gpus and not split.is_shared:
        used_and_given = (
            ("inference", engine_gpus, split.inference * gpus),
            ("training", spec.trainer.ranks, split.train * gpus),
        )
        for role, used, given in used_and_given:
            if used < given:
                yield f"{given - used} of {given} {role} GPUs would stand idle"
    is_gpu_shared = split.is_shared and 0 < gpus < engine_gpus + spec.trainer.ranks
    if is_gpu_shared and engines.gpu_memory_utilization > 0.6:
        yield (
            f"engines and trainer share GPUs, and rollout.engines.gpuMemoryUtilization "
            f"{engines.gpu_memory_utilization} leaves the trainer little; 0.4 is a start"
        )
    if topology.hold == "Run" and len(segments_of(spec.stages)) > 1:
        yield f"topology.hold Run keeps all {split.total} nodes while nothing is trained; Segment releases them"
    if launcher == "operator" and spec.storage == StorageSpec():
        yield "storage is empty: the run takes the operator's default, and is refused where that has none"
