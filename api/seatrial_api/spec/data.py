"""Which tasks a run trains on and is measured on."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Fraction, Name, Positive
from seatrial_api.rules import Rule, RuledModel, unique
from seatrial_api.spec.model import Source


class TaskSet(ApiModel):
    """A set of tasks."""

    source: Source
    """Where the tasks are."""
    format: Literal["Directories", "Parquet", "Questions"] = "Directories"
    """Task directories; parquet shards with the columns `path` and `task_binary`; or questions with one right answer,
    a line of JSON each, in the shape of HLE or GPQA."""
    limit: Positive | None = None
    """Use only the first tasks in order of their names; all of them if empty."""


class NamedTaskSet(ApiModel):
    """A task set with a name of its own in reports."""

    name: Name
    """Name of the set."""
    tasks: TaskSet
    """The tasks."""


class DifficultySchedule(RuledModel):
    """Prefer tasks that the policy neither always nor never solves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.minPassRate <= self.maxPassRate",
            "minPassRate {self.minPassRate} exceeds maxPassRate {self.maxPassRate}, so that every task would be "
            "rare; swap them",
            ".minPassRate",
        ),
    )

    min_pass_rate: Fraction = 0.0
    """Tasks whose running pass rate lies below are sampled at a quarter of their weight."""
    max_pass_rate: Fraction = 1.0
    """Tasks whose running pass rate lies above are sampled at a quarter of their weight."""


class Domain(ApiModel):
    """A kind of task with its share of the training batches."""

    name: Name
    """Matches `metadata.domain` in a task's `task.toml`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the sampled tasks, relative to the other domains."""
    difficulty: DifficultySchedule | None = None
    """Sampling by pass rate; uniform if empty."""
    kl_coefficient: Annotated[float, Field(ge=0)] | None = None
    """KL coefficient for this domain's trajectories; `algorithm.kl` if empty."""


def _apart(field: str, other: str) -> Rule:
    return Rule(
        f"!has(self.{field}) || !has(self.{other}) || dyn(self.{field}.source) != dyn(self.{other}.source)",
        f"{field} has the same source as {other}, and no task may stand in two sets; split the tasks",
        f".{field}",
    )


class DataSpec(RuledModel):
    """Task sets by use; no task may stand in two of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _apart("validation", "train"),
        _apart("heldOut", "train"),
        _apart("heldOut", "validation"),
        Rule(
            "!has(self.train) || self.regression.all(named, dyn(named.tasks.source) != dyn(self.train.source))",
            "a regression set has the same source as train, and no task may stand in two sets; split the tasks",
            ".regression",
        ),
        unique("regression", "name"),
        Rule(
            "self.regression.all(named, named.name != 'held-out')",
            "held-out is what results call data.heldOut; give the regression set another name",
            ".regression",
        ),
        unique("domains", "name"),
    )

    train: TaskSet | None = None
    """Tasks to train on; a run that only evaluates needs none."""
    validation: TaskSet | None = None
    """Tasks that choose the best checkpoint; never trained."""
    held_out: TaskSet | None = None
    """Tasks that only Evaluate stages see."""
    regression: list[NamedTaskSet] = Field(default_factory=list, max_length=16)
    """Sets on which the trained model must not be worse than the initial one."""
    domains: list[Domain] = Field(default_factory=list, max_length=64)
    """Domains with their weights; every task counts the same if empty."""
