"""Guards, checkpoints, tracking and prices."""

from typing import Annotated, ClassVar

from pydantic import Field

from seatrial_api.base import ApiModel, FilePath, Fraction, Name, NonNegative, Positive
from seatrial_api.rules import Rule, RuledModel, at_most_one
from seatrial_api.spec.model import PvcSource, S3Source


class GuardsSpec(RuledModel):
    """Bounds that end a Train stage resumably; empty switches a guard off."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minEntropy) || !has(self.maxEntropy) || self.minEntropy < self.maxEntropy",
            "minEntropy {self.minEntropy} is not below maxEntropy {self.maxEntropy}, so that a guard would always "
            "fire; lower it or raise maxEntropy",
            ".minEntropy",
        ),
        Rule(
            "!has(self.maxRewardJump) || self.windowSteps >= 2",
            "maxRewardJump measures against the spread of windowSteps {self.windowSteps} batches; make it 2 or more",
            ".windowSteps",
        ),
    )

    max_logprob_diff: Annotated[float, Field(gt=0)] | None = 0.1
    """Mean absolute logprob difference between engine and trainer on tokens of the current version."""
    max_mismatch_kl: Annotated[float, Field(gt=0)] | None = None
    """Mean of r - log r - 1 between trainer and engine."""
    max_entropy: Annotated[float, Field(gt=0)] | None = None
    """Mean policy entropy in nats per token."""
    min_entropy: Annotated[float, Field(ge=0)] | None = None
    """Mean policy entropy in nats per token."""
    max_error_rate: Fraction | None = 0.05
    """Share of trials with an infrastructure outcome over the window."""
    max_length_skew: Annotated[float, Field(gt=0)] | None = None
    """Infrastructure failure rate of the longest quartile of trials over that of the shortest."""
    max_reward_jump: Annotated[float, Field(gt=0)] | None = None
    """Jump of the batch's mean reward against the window's mean, in window standard deviations."""
    max_reward_hacking: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rise of the mean reward or the pass rate in training that comes with as large a fall of validation pass@1 since
    its best, or with as large a rise of the share of trials that tampered; 0.1 is ten points."""
    window_steps: Positive = 5
    """Batches that a windowed guard looks at."""
    rearm_steps: NonNegative = 5
    """Batches after a resumption during which the guard that fired is silent."""


class CheckpointSpec(ApiModel):
    """What is kept of a run, and where."""

    every_steps: Positive = 5
    """Batches between checkpoints."""
    keep: Positive = 2
    """Newest checkpoints to keep; the best one is kept besides."""
    asynchronous: bool = False
    """Write while the next step runs."""


class StorageSpec(RuledModel):
    """Run storage: reports, checkpoints, spooled groups and traces; one of the three, or the launcher's default."""

    rules: ClassVar[tuple[Rule, ...]] = (at_most_one("storage", "path", "pvc", "s3"),)

    path: FilePath | None = None
    """A folder; a relative path starts at the working directory."""
    pvc: PvcSource | None = None
    """A PersistentVolumeClaim."""
    s3: S3Source | None = None
    """An S3 bucket."""


class Wandb(ApiModel):
    """Weights & Biases."""

    project: str
    """Project."""
    entity: str | None = None
    """Team or user."""
    secret: Name | None = None
    """Secret with `apiKey`."""


class MLflow(ApiModel):
    """MLflow."""

    tracking_uri: str
    """Tracking server, or a folder."""
    experiment: str
    """Experiment."""


class Trackio(ApiModel):
    """trackio."""

    project: str
    """Project."""


class TrackingSpec(ApiModel):
    """Where metrics go besides TensorBoard files, which are always written."""

    wandb: Wandb | None = None
    """Weights & Biases."""
    mlflow: MLflow | None = None
    """MLflow."""
    trackio: Trackio | None = None
    """trackio."""


class CostSpec(ApiModel):
    """Prices in dollars; a tier without a price costs nothing."""

    node_hour: Annotated[float, Field(ge=0)] = 0.0
    """One node for one hour."""
    cached_prompt_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """A million prompt tokens served from the prefix cache."""
    prompt_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """A million prompt tokens computed."""
    completion_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """A million sampled tokens."""


class ReportSpec(ApiModel):
    """What the report shows in full."""

    trajectories: NonNegative = 24
    """Trajectories shown token by token."""
