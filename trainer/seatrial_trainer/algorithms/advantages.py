"""Rewards of one group to advantages.

R_1 … R_n are the rewards of a group's valid trials after penalties, R̄ their mean. An infrastructure failure has no
reward and is not among them, so it never changes another trial's advantage. A group of one has no baseline: its
advantage is 0 under every estimator.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import assert_never

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.algorithm import AdvantageSpec

EPSILON = 1e-6
"""Added to every denominator that can be zero, as the published implementations do."""


def advantages(rewards: Sequence[float], spec: AdvantageSpec) -> list[float]:
    """The advantage of each trial by the estimator that the spec names.

    Raises:
        InvalidInputError: a reward is not finite, or is negative under `maxrl`.
    """
    for reward in rewards:
        if not math.isfinite(reward):
            msg = f"a reward is {reward}, but advantages need finite rewards: look at the task's verifier"
            raise InvalidInputError(msg)
    match spec.name:
        case "grpo":
            return grpo(rewards, normalize_std=spec.normalize_std)
        case "dr-grpo":
            return dr_grpo(rewards)
        case "rloo":
            return rloo(rewards)
        case "maxrl":
            return maxrl(rewards)
        case _:
            assert_never(spec.name)


def grpo(rewards: Sequence[float], *, normalize_std: bool) -> list[float]:
    """Group-relative advantage, Shao et al. 2024 (arXiv:2402.03300), equation 3.

    A_i = R_i - R̄, divided by std + 1e-6 where asked for; std is the sample's, with n - 1 in its denominator (ddof 1).
    """
    centred = dr_grpo(rewards)
    if not normalize_std or len(rewards) < 2:
        return centred
    std = math.sqrt(math.fsum(a * a for a in centred) / (len(centred) - 1))
    return [a / (std + EPSILON) for a in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Dr. GRPO, Liu et al. 2025 (arXiv:2503.20783), equation 5: A_i = R_i - R̄."""
    if not rewards:
        return []
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Leave-one-out baseline, Ahmadian et al. 2024 (arXiv:2402.14740), equation 8.

    A_i = R_i - mean of the others = n / (n - 1) · (R_i - R̄).
    """
    n = len(rewards)
    return [a * n / (n - 1) for a in dr_grpo(rewards)] if n > 1 else [0.0] * n


def maxrl(rewards: Sequence[float]) -> list[float]:
    """MaxRL, Tajwar et al. 2026 (arXiv:2602.02710): A_i = (R_i - R̄) / (R̄ + 1e-6); rarely solved tasks weigh more.

    With rewards 0 and 1 it is the gradient of log of the pass rate rather than of the pass rate.

    Raises:
        InvalidInputError: a reward is negative; the mean would change its sign.
    """
    if rewards and min(rewards) < 0:
        msg = (
            f"advantage maxrl needs rewards of at least 0, but one is {min(rewards)}: "
            "choose another advantage, or take the penalties or the negative rewards away"
        )
        raise InvalidInputError(msg)
    centred = dr_grpo(rewards)
    return [a / (fmean(rewards) + EPSILON) for a in centred]
