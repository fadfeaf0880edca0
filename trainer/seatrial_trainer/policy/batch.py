"""What a policy backend trains on: sequences whose weights in the loss are already decided."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from seatrial_api.spec.algorithm import LossSpec


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One token sequence; the lists run in parallel, one entry a token.

    The loss is `sum(weight * token_loss)` over tokens with mask 1. Advantage and weight come from the whole
    mini-batch, so packing, order and splitting over ranks never change the gradient.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    """Under the rollout policy."""
    advantage: float
    """Of the trajectory that the sequence belongs to."""
    weight: float
    """Of each masked token in the loss: the aggregation's denominator, resolved."""
    kl_coefficient: float = 0.0
    weight_versions: list[int] | None = None
    """Version of the weights that sampled each token, -1 where none did."""
    reference_logprobs: list[float] | None = None
    """Under the reference policy, where a KL penalty asks for it."""
    routed_experts: np.ndarray | None = None
    """Experts that the engine sent each token to, shape (tokens, layers, experts of a token); -1 where it did not say.
    None where the run does not replay routers."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimiser step."""

    sequences: list[TrainingSequence]
    loss: LossSpec
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    fresh_version: int | None = None
    """Version that the policy's weights are exactly, so that tokens of this version measure engine against trainer."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """Sums and means over the masked tokens of one mini-batch."""

    loss: float
    num_tokens: int
    """Tokens with mask 1."""
    num_total_tokens: int
    """All tokens that went through the model, padding excluded."""
    entropy: float
    """Mean entropy of the policy, nats per token."""
    logprob_abs_diff_mean: float
    """Mean of |log pi_rollout - log pi_train|."""
    logprob_abs_diff_max: float
    mismatch_kl: float
    """Mean of r - log r - 1 with r = pi_train / pi_rollout."""
    clipped_fraction: float
    """Share of tokens that the loss's bound masks out."""
    kl_to_reference: float
    packing_waste: float
    """Padding as a share of all positions computed."""
    seconds: float
    num_fresh_tokens: int = 0
    """Tokens that the policy's very weights sampled."""
    fresh_logprob_abs_diff_sum: float = 0.0
    """Sum of |log pi_rollout - log pi_train| over them: staleness has no part in it."""
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptimStats:
    """One optimiser step."""

    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    skipped: bool = False
    """The gradient was not finite; weights are unchanged."""
