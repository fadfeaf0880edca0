"""The published formulas once more, written straight down in 64 bits: loops over trials and tokens, no tricks.

Nothing here is shared with what it is compared with.
"""

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev

import torch
from torch import Tensor

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AdvantageSpec, AlgorithmSpec, LossSpec, PenaltySpec
from seatrial_api.trajectory import Trajectory

LIMITS = {Outcome.CONTEXT_EXCEEDED, Outcome.TURN_TOO_LONG, Outcome.STEPS_EXHAUSTED}


def token_loss(logp: Tensor, log_mu: float, advantage: float, spec: LossSpec) -> Tensor:
    """The loss of one token; its derivative by `logp` is the gradient."""
    p, mu = math.exp(logp.item()), math.exp(log_mu)
    r = p / mu
    match spec.name:
        case "dppo":  # arXiv:2602.04879, binary total variation
            moved_too_far = p - mu > spec.high if advantage > 0 else mu - p > spec.low
            factor = 0.0 if moved_too_far and advantage != 0 else min(r, spec.ratio_cap)
        case "glm5":  # arXiv:2602.15763, equations 3 to 5
            factor = r if 1 - spec.low < r < 1 + spec.high else 0.0
        case "mis":  # arXiv:2510.18855
            factor = r if 1 - spec.low <= r <= 1 + spec.high else 0.0
        case "tis":  # arXiv:1802.01561, section 4.1
            factor = min(r, spec.ratio_cap)
        case "ppo-clip":  # arXiv:1707.06347, equation 7
            ratio = (logp - log_mu).exp()
            bounded = ratio.clamp(1 - spec.low, 1 + spec.high)
            return -torch.minimum(ratio * advantage, bounded * advantage)
    return -advantage * factor * logp


def kl_gradient(logp: float, log_reference: float, estimator: str) -> float:
    """Derivative of a KL estimator by log p, k1 by its score function."""
    d = logp - log_reference
    return {"k1": d, "k2": d, "k3": 1 - math.exp(-d)}[estimator]


def advantages(rewards: Sequence[float], spec: AdvantageSpec) -> list[float]:
    """One advantage a reward."""
    n, average = len(rewards), mean(rewards)
    if n == 1:
        return [0.0]
    match spec.name:
        case "grpo":  # arXiv:2402.03300, equation 3
            spread = stdev(rewards) + 1e-6 if spec.normalize_std else 1.0
            return [(r - average) / spread for r in rewards]
        case "dr-grpo":  # arXiv:2503.20783, equation 5
            return [r - average for r in rewards]
        case "rloo":  # arXiv:2402.14740, equation 8
            return [r - (sum(rewards) - r) / (n - 1) for r in rewards]
        case "maxrl":  # arXiv:2602.02710
            return [(r - average) / (average + 1e-6) for r in rewards]


def penalised(group: Sequence[Trajectory], spec: PenaltySpec) -> list[float]:
    """Rewards less penalties; the one for length as arXiv:2501.12599, section 2.3.3."""
    lengths = [sum(sum(sequence.loss_mask) for sequence in one.sequences) for one in group]
    found = []
    for one, length in zip(group, lengths, strict=True):
        assert one.reward is not None
        value = one.reward
        value -= spec.failed_tool_call * sum(call.is_error for turn in one.turns for call in turn.tool_calls)
        value -= spec.overlong if one.outcome in LIMITS else 0.0
        if one.reward > 0.999 and max(lengths) > min(lengths):
            value -= spec.length * (length - min(lengths)) / (max(lengths) - min(lengths))
        found.append(value)
    return found


type Trained = list[list[tuple[Trajectory, float]]]
"""By group: what enters the loss, with its advantage."""


def trained(groups: Sequence[Sequence[Trajectory]], algorithm: AlgorithmSpec) -> Trained:
    """Trajectories that enter the loss; groups of which none does are not there."""
    found: Trained = []
    for group in groups:
        graded = [one for one in group if not one.outcome.is_infrastructure]
        if not graded:
            continue
        rewards = penalised(graded, algorithm.penalties)
        values = advantages(rewards, algorithm.advantage)
        filters = algorithm.filters
        if filters.zero_variance and max(rewards) - min(rewards) <= filters.zero_variance_tolerance:
            continue
        kept = [
            (one, value)
            for one, value in zip(graded, values, strict=True)
            if one.num_sampled and not (filters.overlong and one.outcome in LIMITS)
        ]
        if kept:
            found.append(kept)
    return found


def batch_loss(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: AlgorithmSpec,
    max_tokens: int,
    loss_of: Callable[[int, float, float], Tensor],
) -> Tensor:
    """The loss of a mini-batch.

    Args:
        groups: Trajectories by group.
        algorithm: All of the rules.
        max_tokens: L of `seq_mean_token_sum_norm`.
        loss_of: Loss of a token from its id, log mu and advantage.
    """

    def summed(one: Trajectory, advantage: float) -> Tensor:
        return torch.stack(
            [
                loss_of(token, log_mu, advantage)
                for sequence in one.sequences
                for token, is_sampled, log_mu in zip(
                    sequence.token_ids, sequence.loss_mask, sequence.logprobs, strict=True
                )
                if is_sampled
            ]
        ).sum()

    kept = trained(groups, algorithm)
    flat = [entry for group in kept for entry in group]
    if not flat:
        return torch.zeros((), dtype=torch.float64)
    match algorithm.aggregation:
        case "token_mean":
            return torch.stack([summed(*e) for e in flat]).sum() / sum(one.num_sampled for one, _ in flat)
        case "sequence_mean":
            return torch.stack([summed(one, a) / one.num_sampled for one, a in flat]).mean()
        case "seq_mean_token_sum_norm":
            return torch.stack([summed(*e) / max_tokens for e in flat]).mean()
        case "prompt_mean":
            return torch.stack(
                [torch.stack([summed(*e) for e in g]).sum() / sum(one.num_sampled for one, _ in g) for g in kept]
            ).mean()
