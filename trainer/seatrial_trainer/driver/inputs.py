"""What a run reads: the model's folder and its task sets, found and checked before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.data import TaskSet
from seatrial_rollout.engine.model_files import find_model
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.trials.tasks import TaskRef, check_disjoint, load_task_set

HELD_OUT = "held-out"
"""What the set of `spec.data.heldOut` is called in results."""
CACHE = Path(".cache")
"""Folder beside the manifest in which task sets are unpacked and brought."""
"""Beside the manifest: what task sets are unpacked into."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a run reads."""

    model_path: Path
    train: list[TaskRef]
    validation: list[TaskRef]
    held_out: list[TaskRef]
    regression: Mapping[str, list[TaskRef]]

    @property
    def evaluation_sets(self) -> dict[str, list[TaskRef]]:
        """What an Evaluate stage measures, by name; the held-out set first."""
        held_out = {HELD_OUT: self.held_out} if self.held_out else {}
        return held_out | dict(self.regression)


def load_inputs(spec: RLRunSpec, base_dir: Path) -> Inputs:
    """Find and check what a run reads.

    Args:
        spec: The run.
        base_dir: Folder that relative paths start at: the manifest's.

    Raises:
        InvalidInputError: if the model, its chat template or a task cannot be used, saying what to change.
    """
    model_path = find_model(spec.model.source, base_dir)
    ChatTemplate.load(model_path)

    def load(task_set: TaskSet | None) -> list[TaskRef]:
        return [] if task_set is None else load_task_set(task_set, base_dir, base_dir / CACHE)

    inputs = Inputs(
        model_path=model_path,
        train=load(spec.data.train),
        validation=load(spec.data.validation),
        held_out=load(spec.data.held_out),
        regression={named.name: load(named.tasks) for named in spec.data.regression},
    )
    sets = {"train": inputs.train, "validation": inputs.validation, "heldOut": inputs.held_out}
    check_disjoint(sets | dict(inputs.regression))
    return inputs
