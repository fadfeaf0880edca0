"""Token losses of the policy, and the KL penalty.

p and μ are the trainer's and the rollout's probability of a sampled token, r = p / μ, A the advantage, sg() stops
the gradient. Every loss uses the rollout's log probabilities directly, the ones the engine sampled with, so staleness
and the numerical mismatch between engine and trainer are corrected together.

A position outside the mask is replaced before anything is computed from it: whatever stands there, NaN included,
reaches neither the loss nor the gradient.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from seatrial_api.spec.algorithm import LossSpec

Floats = Float[Tensor, " tokens"]
"""One number for each token."""

Mask = Bool[Tensor, " tokens"]
"""Which tokens count."""

MAX_LOG_RATIO = 20.0
"""exp() is never taken of more than this, so that no ratio overflows; there the gradient through it is 0."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Per-token losses before weighting; 0 outside the mask."""

    loss: Floats
    """Differentiable."""
    clipped: Mask
    """Where the bound stops the gradient (`tis`: where it cuts the ratio)."""


def policy_loss(
    logprobs: Floats,
    rollout_logprobs: Floats,
    advantages: Floats,
    mask: Mask,
    spec: LossSpec,
) -> TokenLosses:
    """The loss that the spec names, for each token.

    Args:
        logprobs: log p, with gradient.
        rollout_logprobs: log μ.
        advantages: A.
        mask: Sampled tokens.
        spec: Name and bounds.
    """
    logp = torch.where(mask, logprobs, 0.0)
    log_mu = torch.where(mask, rollout_logprobs, 0.0)
    a = torch.where(mask, advantages, 0.0)
    match spec.name:
        case "dppo":
            result = _dppo(logp, log_mu, a, spec)
        case "glm5":
            result = _glm5(logp, log_mu, a, spec)
        case "ppo-clip":
            result = _ppo_clip(logp, log_mu, a, spec)
        case "tis":
            result = _tis(logp, log_mu, a, spec)
        case "mis":
            result = _mis(logp, log_mu, a, spec)
        case _:
            assert_never(spec.name)
    return TokenLosses(torch.where(mask, result.loss, 0.0), result.clipped & mask)


def _ratio(logp: Tensor, log_mu: Tensor) -> Tensor:
    return (logp - log_mu).clamp(max=MAX_LOG_RATIO).exp()


def _dppo(logp: Tensor, log_mu: Tensor, a: Tensor, spec: LossSpec) -> TokenLosses:
    """DPPO with the binary total-variation mask (arXiv:2602.04879).

    -A · sg(min(r, C)) · log p · m, with m = 0 where A > 0 and p - μ > high, or A < 0 and μ - p > low, else 1. The
    bound is on probabilities, so a rare token may grow by a large factor and a likely one may not collapse.
    With C = ∞ the gradient is that of -A · r · m.
    """
    with torch.no_grad():
        ratio = _ratio(logp, log_mu).clamp(max=spec.ratio_cap)
        gain = logp.exp() - log_mu.exp()
        clipped = ((a > 0) & (gain > spec.high)) | ((a < 0) & (-gain > spec.low))
    return TokenLosses(torch.where(clipped, 0.0, -a * ratio * logp), clipped)


def _glm5(logp: Tensor, log_mu: Tensor, a: Tensor, spec: LossSpec) -> TokenLosses:
    """GLM-5's double-sided masking (arXiv:2602.15763, section 4.1.2, equations 3 to 5).

    -A · sg(f(r)) · log p, with f(r) = r where 1 - low < r < 1 + high, else 0.
    """
    with torch.no_grad():
        ratio = _ratio(logp, log_mu)
        clipped = (ratio <= 1 - spec.low) | (ratio >= 1 + spec.high)
    return TokenLosses(torch.where(clipped, 0.0, -a * ratio * logp), clipped)


def _mis(logp: Tensor, log_mu: Tensor, a: Tensor, spec: LossSpec) -> TokenLosses:
    """Masked importance sampling as in IcePop (Ling team 2025, arXiv:2510.18855).

    -A · sg(M(r)) · log p, with M(r) = r where 1 - low ≤ r ≤ 1 + high, else 0. As ratios are taken against the rollout
    itself, this is `glm5` with the bounds included.
    """
    with torch.no_grad():
        ratio = _ratio(logp, log_mu)
        clipped = (ratio < 1 - spec.low) | (ratio > 1 + spec.high)
    return TokenLosses(torch.where(clipped, 0.0, -a * ratio * logp), clipped)


def _tis(logp: Tensor, log_mu: Tensor, a: Tensor, spec: LossSpec) -> TokenLosses:
    """Truncated importance sampling (Yao et al. 2025; Espeholt et al. 2018, arXiv:1802.01561, section 4.1).

    -A · sg(min(r, C)) · log p. Nothing is masked: a token whose ratio is cut still has a gradient.
    """
    with torch.no_grad():
        ratio = _ratio(logp, log_mu)
        clipped = ratio > spec.ratio_cap
    return TokenLosses(-a * ratio.clamp(max=spec.ratio_cap) * logp, clipped)


def _ppo_clip(logp: Tensor, log_mu: Tensor, a: Tensor, spec: LossSpec) -> TokenLosses:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    -min(r · A, clip(r, 1 - low, 1 + high) · A), with the rollout as the old policy.
    """
    ratio = _ratio(logp, log_mu)
    clipped = ((a > 0) & (ratio > 1 + spec.high)) | ((a < 0) & (ratio < 1 - spec.low))
    bounded = ratio.clamp(1 - spec.low, 1 + spec.high)
    return TokenLosses(-torch.minimum(ratio * a, bounded * a), clipped.detach())


def kl_penalty(
    logprobs: Floats,
    reference_logprobs: Floats,
    mask: Mask,
    estimator: Literal["k1", "k2", "k3"],
) -> Floats:
    """Schulman's estimators of KL(p ‖ reference) for each token, 0 outside the mask (joschu.net/blog/kl-approx.html).

    With d = log p - log p_ref: k1 = d, k2 = d² / 2, k3 = exp(-d) - 1 + d.

    The gradient of k1 as it stands has mean zero and penalises nothing. Its value is kept, and its gradient is the
    score-function one, d · ∇log p, which is unbiased for the KL and equals that of k2.
    """
    logp = torch.where(mask, logprobs, 0.0)
    d = logp - torch.where(mask, reference_logprobs, 0.0)
    match estimator:
        case "k1":
            score = d.detach() * logp
            kl = d.detach() + score - score.detach()
        case "k2":
            kl = d.square() / 2
        case "k3":
            kl = (-d).clamp(max=MAX_LOG_RATIO).exp() - 1 + d
        case _:
            assert_never(estimator)
    return torch.where(mask, kl, 0.0)


def mismatch_kl(logprobs: Floats, rollout_logprobs: Floats) -> Floats:
    """K3 of KL(μ ‖ p) for each token, sampled from μ: r - log r - 1; 0 where trainer and rollout agree."""
    log_ratio = logprobs - rollout_logprobs
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp() - 1 - log_ratio
