"""What is optimised: loss, advantage, aggregation, optimiser, filters and penalties."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, NonNegative, Positive
from seatrial_api.rules import Rule, RuledModel

LossName = Literal["dppo", "glm5", "ppo-clip", "tis", "mis"]
AdvantageName = Literal["grpo", "dr-grpo", "rloo", "maxrl"]
AggregationName = Literal["token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean"]


class LossSpec(RuledModel):
    """The policy loss and its bounds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'dppo' || (self.low <= 1.0 && self.high <= 1.0)",
            "low {self.low} and high {self.high} are differences of probabilities under dppo: at most 1; 0.15 is usual",
            ".high",
        ),
        Rule(
            "!(self.name in ['glm5', 'ppo-clip', 'mis']) || self.low < 1.0",
            "low {self.low} leaves no lower bound under {self.name}, whose ratio is positive: choose less than 1",
            ".low",
        ),
        Rule(
            "self.name == 'tis' || self.low + self.high > 0.0",
            "low and high are both 0, which leaves {self.name} no token to train on; 0.2 is usual, 0.15 for dppo",
            ".high",
        ),
        Rule(
            "self.ratioCap >= 1.0",
            "ratioCap {self.ratioCap} would cut the ratio of unchanged weights, which is 1; choose 1 or more",
            ".ratioCap",
        ),
    )

    name: LossName = "dppo"
    """Which loss."""
    low: Annotated[float, Field(ge=0)] = 0.15
    """Lower bound: probability difference for `dppo`, distance of the ratio below 1 for the others."""
    high: Annotated[float, Field(ge=0)] = 0.15
    """Upper bound: probability difference for `dppo`, distance of the ratio above 1 for the others."""
    ratio_cap: Annotated[float, Field(gt=0)] = 20.0
    """C: the importance ratio is cut here in `dppo` and `tis`."""


class AdvantageSpec(RuledModel):
    """How rewards of a group become advantages."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.normalizeStd || self.name == 'grpo'",
            "normalizeStd belongs to grpo, not to {self.name}; set it to false or choose grpo",
            ".normalizeStd",
        ),
    )

    name: AdvantageName = "grpo"
    """Which estimator."""
    normalize_std: bool = False
    """Divide by the group's standard deviation (`grpo` only; ddof 1)."""


class KLSpec(ApiModel):
    """A penalty for leaving the reference policy, which is the initial weights."""

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight in the loss; 0 switches it off and no reference is kept."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators."""


Decay = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a moving average: at least 0, less than 1."""


class OptimizerSpec(ApiModel):
    """AdamW and its learning-rate schedule."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay of the first and second moment."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this global norm."""
    warmup_steps: NonNegative = 0
    """Batches over which the rate rises linearly."""
    schedule: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """Course of the rate after the warm-up."""
    min_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The rate at the last batch, as a share of the peak."""


class FilterSpec(ApiModel):
    """Groups and trajectories that are left out of the loss, never out of the group's statistics."""

    zero_variance: bool = True
    """Leave out groups whose rewards are all equal: their advantages are zero."""
    zero_variance_tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """Rewards that differ by less count as equal."""
    overlong: bool = False
    """Leave out trajectories that ended by context, turn or step limits."""


class PenaltySpec(ApiModel):
    """Taken from a trajectory's reward before advantages are computed."""

    failed_tool_call: Annotated[float, Field(ge=0)] = 0.0
    """For each tool call that was answered with an error."""
    length: Annotated[float, Field(ge=0)] = 0.0
    """For a sampled-token count at the group's maximum, scaled linearly from its minimum; solved trials only."""
    overlong: Annotated[float, Field(ge=0)] = 0.0
    """For ending by context, turn or step limits."""


class AlgorithmSpec(RuledModel):
    """The training algorithm."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.groupSize >= 2",
            "groupSize {self.groupSize} leaves nothing to compare a trial with; choose 2 or more",
            ".groupSize",
        ),
        Rule(
            "!has(self.minValidTrials) || self.minValidTrials <= self.groupSize",
            "minValidTrials {self.minValidTrials} exceeds groupSize {self.groupSize}, so that no group would ever be "
            "complete; lower it or leave it empty for half the group",
            ".minValidTrials",
        ),
        Rule(
            "!has(self.minibatchSize) || self.batchSize % self.minibatchSize == 0",
            "minibatchSize {self.minibatchSize} does not divide batchSize {self.batchSize}; choose a divisor or leave "
            "it empty for one step per batch",
            ".minibatchSize",
        ),
        Rule(
            "self.advantage.name != 'maxrl' || "
            "self.penalties.failedToolCall + self.penalties.length + self.penalties.overlong == 0.0",
            "maxrl needs rewards of at least 0 and penalties can make them negative; set every penalty to 0 or choose "
            "another advantage",
            ".penalties",
        ),
    )

    loss: LossSpec = LossSpec()
    """The policy loss."""
    advantage: AdvantageSpec = AdvantageSpec()
    """The advantage estimator."""
    aggregation: AggregationName = "prompt_mean"
    """How token losses are averaged over the batch."""
    group_size: Positive = 16
    """Trials per task."""
    batch_size: Positive = 16
    """Groups per training batch; the weight version rises once per batch."""
    minibatch_size: Positive | None = None
    """Groups per optimiser step; one step per batch if empty."""
    min_valid_trials: Positive | None = None
    """Valid trials below which a group is refilled; half the group if empty."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """The optimiser."""
    kl: KLSpec = KLSpec()
    """KL penalty."""
    filters: FilterSpec = FilterSpec()
    """What is left out of the loss."""
    penalties: PenaltySpec = PenaltySpec()
    """What is taken from rewards."""
    seed: NonNegative = 0
    """Seeds sampling order, task order and every other draw on our side."""
