"""The playbook: which stages run, in order, and the gates behind them."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Fraction, Name, NonNegative, Positive
from seatrial_api.rules import Rule, RuledModel, exactly_one, unique
from seatrial_api.spec.harness import HARNESS_PATTERN, HarnessName, Sampling


class PreflightStage(RuledModel):
    """Run training tasks once with the untrained model, then look for reward variance."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.varianceTasks <= self.maxVarianceTries",
            "varianceTasks {self.varianceTasks} can never be found among maxVarianceTries {self.maxVarianceTries} "
            "tasks; lower it or try more",
            ".varianceTasks",
        ),
    )

    tasks: Positive | None = None
    """Training tasks tried once; all of them if empty."""
    max_error_rate: Fraction = 0.01
    """Gate: share of trials with an infrastructure outcome."""
    variance_tasks: Positive = 32
    """Tasks with reward variance to be found."""
    max_variance_tries: Positive = 128
    """Tasks tried with a whole group at most."""
    check_solutions: bool = True
    """Gate: where a task has a solution, the oracle scores 1 and doing nothing scores 0."""


class EvaluateStage(RuledModel):
    """Measure a checkpoint on the held-out and regression sets."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minGain) || self.checkpoint != 'Initial'",
            "minGain {self.minGain} compares with the Initial evaluation, which this one is; move it to the "
            "evaluation of Best or Last",
            ".minGain",
        ),
        Rule(
            f"self.harnesses.all(harness, harness.matches('{HARNESS_PATTERN}'))",
            "harnesses holds a name that is neither a harness of ours nor module:Class; correct it",
            ".harnesses",
        ),
    )

    checkpoint: Literal["Initial", "Best", "Last"]
    """Which weights are measured."""
    passes: Positive = 1
    """Tries per task and sampling setting."""
    sampling: list[Sampling] = Field(default_factory=lambda: [Sampling()], min_length=1, max_length=8)
    """Sampling settings, each measured on its own; the gates look at the first."""
    harnesses: list[HarnessName] = Field(default_factory=list, max_length=8)
    """Harnesses to measure with; the run's own if empty."""
    min_gain: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Gate: gain in pass@1 over the Initial evaluation, between -1 and 1."""
    max_regression: Fraction = 0.02
    """Gate: loss on a regression set, by the upper end of a paired bootstrap interval clustered by task."""


class OverfitStage(RuledModel):
    """Train synchronously on few tasks to prove that the loop learns; the weights are thrown away."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.steps >= 3",
            "steps {self.steps} is too few: the logprob gate looks at steps 1 to 3; choose 3 or more",
            ".steps",
        ),
        Rule(
            "self.groupSize >= 2",
            "groupSize {self.groupSize} leaves nothing to compare a trial with; choose 2 or more",
            ".groupSize",
        ),
    )

    tasks: Positive = 32
    """Tasks with reward variance, as Preflight found them."""
    group_size: Positive = 8
    """Trials per task."""
    steps: Positive = 10
    """Training steps."""
    max_logprob_diff: Annotated[float, Field(gt=0)] = 0.03
    """Gate: mean absolute logprob difference between engine and trainer over steps 1 to 3; once over the batches, and
    once over what trials sampled after a weight sync had found them in the middle of their work."""
    min_reward_gain: float = 0.1
    """Gate: gain in mean reward from the first to the last step."""


class AblateArm(ApiModel):
    """One variant of the run."""

    name: Name
    """Name of the arm."""
    patch: dict[str, Any]
    """JSON merge patch of the spec."""


class AblateStage(RuledModel):
    """Compare variants from the same start; the weights are thrown away."""

    rules: ClassVar[tuple[Rule, ...]] = (unique("arms", "name"),)

    arms: list[AblateArm] = Field(min_length=2, max_length=16)
    """The variants."""
    steps: Positive = 20
    """Training steps of each arm."""
    passes: Positive = 3
    """Tries per held-out task."""


class TrainStage(ApiModel):
    """Train asynchronously from the model."""

    steps: Positive
    """Training batches."""
    validate_every_steps: NonNegative = 20
    """Validation runs after every so many batches; 0 never validates."""
    validation_passes: Positive = 1
    """Tries per validation task."""


class StageSpec(RuledModel):
    """One stage: exactly one of the five kinds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("a stage", "preflight", "evaluate", "overfit", "ablate", "train"),
        Rule(
            "self.name != 'validation'",
            "validation is what trials of the validation set are called; give the stage another name",
            ".name",
        ),
    )

    name: Name
    """Name of the stage, unique within the run."""
    preflight: PreflightStage | None = None
    """Preflight."""
    evaluate: EvaluateStage | None = None
    """Evaluate."""
    overfit: OverfitStage | None = None
    """Overfit."""
    ablate: AblateStage | None = None
    """Ablate."""
    train: TrainStage | None = None
    """Train."""

    @property
    def kind(self) -> str:
        """`Preflight`, `Evaluate`, `Overfit`, `Ablate` or `Train`."""
        for name in ("preflight", "evaluate", "overfit", "ablate", "train"):
            if getattr(self, name) is not None:
                return name.capitalize()
        msg = f"stage {self.name} is of no kind"
        raise ValueError(msg)
