"""A plan's layout of training ranks: whether it divides the model, fits the GPUs, and what would."""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from seatrial_api.ceilings import split_nodes
from seatrial_api.demand import TrialShape
from seatrial_api.refusals import Refusal
from seatrial_api.refusals.common import everywhere
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_trainer.policy.sizing.layouts import idle_share, indivisible, layout_problems, num_replicas
from seatrial_trainer.policy.sizing.memory import GIB, Load, RankMemory, rank_memories
from seatrial_trainer.policy.sizing.parameters import padded_vocabulary, whole_model
from seatrial_trainer.policy.sizing.proposals import propose
from seatrial_trainer.policy.sizing.shapes import ModelShape, model_shape

GPU_MEMORY_GIB = 80.0
"""Of an H100 or A100."""

_MUCH_IDLE = 0.2


@dataclass(frozen=True, slots=True)
class LayoutInputs:
    """What a manifest does not say of the training ranks."""

    model_config: Path | None = None
    """The model's config.json or its folder; the model's own, where that is on this machine."""
    gpu_memory_gib: float = GPU_MEMORY_GIB
    """Memory of a training GPU."""


NOTHING_KNOWN = LayoutInputs()


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """What a layout of ranks takes."""

    trainer: TrainerSpec
    num_parameters: int
    """Of the whole model."""
    padding: int
    """Tokens that the vocabulary is filled up with."""
    num_microbatches: int
    """Of one replica's optimiser step, about."""
    idle_share: float
    """Of a step that a rank waits for the pipeline."""
    memories: tuple[RankMemory, ...]
    """By stage; empty where the layout does not divide the model."""
    gpu_bytes: int | None
    """Memory that a rank may use; none on CPUs."""
    problems: tuple[Refusal, ...]
    proposal: TrainerSpec | None
    """What would fit, where this does not; none too where nothing was found."""

    @property
    def largest(self) -> RankMemory | None:
        """The rank that needs most."""
        return max(self.memories, key=lambda memory: memory.total, default=None)

    @property
    def fits(self) -> bool:
        """Whether nothing refuses it and every rank has the memory that it needs, as far as that is known."""
        if self.problems or (largest := self.largest) is None:
            return False
        return self.gpu_bytes is None or largest.total <= self.gpu_bytes


def plan_layout(
    spec: RLRunSpec, config: Mapping[str, Any], trial: TrialShape, *, gpu_memory_gib: float
) -> PlannedLayout:
    """Plan the ranks of a run whose policy megatron-core trains.

    Args:
        spec: The run.
        config: The model's `config.json`.
        trial: What a trial is taken to be.
        gpu_memory_gib: Memory of a GPU.

    Raises:
        InvalidInputError: the model's sizes are not known.
    """
    shape, trainer = model_shape(config), spec.trainer
    problems = layout_problems(shape, trainer)
    load = _load(spec, trial)
    has_parts = not any(indivisible(shape, trainer.parallelism))
    memories = tuple(rank_memories(shape, trainer, load)) if has_parts else ()
    planned = PlannedLayout(
        trainer=trainer,
        num_parameters=whole_model(shape).total,
        padding=padded_vocabulary(shape, trainer.parallelism.tensor) - shape.vocabulary,
        num_microbatches=load.num_microbatches,
        idle_share=idle_share(
            trainer.parallelism.pipeline, load.num_microbatches, trainer.parallelism.virtual_pipeline
        ),
        memories=memories,
        gpu_bytes=_usable_bytes(spec, gpu_memory_gib),
        problems=tuple(problems),
        proposal=None,
    )
    return planned if planned.fits else _with_proposal(planned, spec, shape, load)


def layout_notes(planned: PlannedLayout) -> Iterator[str]:
    """What a person may want to change."""
    if not planned.fits and planned.proposal is None:
        yield "no training layout of up to eight times the ranks fits; lower trainer.maxTokensPerMicrobatch"
    elif planned.proposal is not None:
        reason = "is refused" if planned.problems else "needs more memory than a GPU has"
        yield f"the training layout {reason}; this one would fit: {as_yaml(planned.proposal)}"
    if planned.idle_share > _MUCH_IDLE:
        yield (
            f"training GPUs stand idle for {planned.idle_share:.0%} of a step while the pipeline fills and drains; "
            "take fewer stages, or more virtualPipeline"
        )


def as_yaml(trainer: TrainerSpec) -> str:
    """The fields of a trainer that a layout is made of."""
    fields = {"ranks", "parallelism", "recompute", "offload_optimizer"}
    told = trainer.model_dump(mode="json", by_alias=True, include=fields)
    return f"trainer: {yaml.safe_dump(told, default_flow_style=True, sort_keys=False, width=sys.maxsize).strip()}"


def _with_proposal(planned: PlannedLayout, spec: RLRunSpec, shape: ModelShape, load: Load) -> PlannedLayout:
    known = set(everywhere(spec))

    def is_allowed(candidate: TrainerSpec) -> bool:
        return set(everywhere(spec.model_copy(update={"trainer": candidate}))) <= known

    proposal = propose(
        shape,
        spec.trainer,
        load,
        gpu_bytes=planned.gpu_bytes or sys.maxsize,
        gpus_per_node=spec.topology.gpus_per_node or spec.trainer.ranks,
        is_allowed=is_allowed,
    )
    return replace(planned, proposal=proposal)


def _load(spec: RLRunSpec, trial: TrialShape) -> Load:
    algorithm = spec.algorithm
    groups = algorithm.minibatch_size or algorithm.batch_size
    tokens = groups * algorithm.group_size * trial.tokens
    budget = spec.trainer.max_tokens_per_microbatch * num_replicas(spec.trainer)
    return Load(
        bytes_per_value=4 if spec.model.dtype == "float32" else 2,
        num_microbatches=max(1, math.ceil(tokens / budget)),
        adapter_rank=spec.model.lora.rank if spec.model.lora else 0,
    )


def _usable_bytes(spec: RLRunSpec, gpu_memory_gib: float) -> int | None:
    """What of a GPU's memory a rank may use; engines that share it take theirs first."""
    topology, engines = spec.topology, spec.rollout.engines
    if topology.gpus_per_node == 0:
        return None
    needed = engines.replicas * engines.tensor_parallel + spec.trainer.ranks
    is_shared = split_nodes(topology).is_shared and needed > topology.gpus_per_node
    share = 1 - engines.gpu_memory_utilization if is_shared else 1.0
    return int(gpu_memory_gib * GIB * share)
