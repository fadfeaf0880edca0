"""Pure statistics of evaluations; a cluster is all the tries at one task."""

from collections.abc import Mapping, Sequence
from math import comb

import numpy as np

from seatrial_api.stage_report import Estimate

_RESAMPLES = 2_000
_CONFIDENCE = 0.95


def pass_at_k(num_tries: int, num_passed: int, k: int) -> float:
    """Probability that at least one of `k` tries passes: 1 - C(n - c, k) / C(n, k).

    Unbiased (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    Raises:
        ValueError: if `k` exceeds the number of tries.
    """
    if not 1 <= k <= num_tries:
        msg = f"pass@{k} needs at least {k} tries a task, there are {num_tries}"
        raise ValueError(msg)
    return 1.0 - comb(num_tries - num_passed, k) / comb(num_tries, k)


def estimate_mean(clusters: Sequence[Sequence[float]], *, seed: int = 0) -> Estimate:
    """Mean of the cluster means with a 95 % percentile bootstrap interval over clusters.

    Tries at one task are not independent, so tasks are resampled, never tries.

    Raises:
        ValueError: if there is no cluster, or an empty one.
    """
    means = _cluster_means(clusters)
    low, high = _bootstrap_interval(means, seed)
    return Estimate(mean=float(means.mean()), low=low, high=high, count=len(means))


def estimate_share(clusters: Sequence[Sequence[float]], *, seed: int = 0) -> Estimate:
    """As `estimate_mean` for tries that are 1 or 0.

    Where every try failed or every one passed, resampling shows no spread, and yet a few tasks prove little: the
    interval is then the exact binomial one (Clopper and Pearson 1934) over tasks.

    Raises:
        ValueError: if there is no cluster, or an empty one.
    """
    estimate = estimate_mean(clusters, seed=seed)
    slack = 1.0 - ((1.0 - _CONFIDENCE) / 2) ** (1.0 / estimate.count)
    if estimate.high == 0.0:
        return estimate.model_copy(update={"high": slack})
    return estimate.model_copy(update={"low": 1.0 - slack}) if estimate.low == 1.0 else estimate


def estimate_pass_at_k(tries: Mapping[str, Sequence[float]], k: int) -> Estimate:
    """Mean over tasks of the unbiased pass@k, with an interval clustered by task.

    Args:
        tries: 1 or 0 for each graded try, by task.
        k: At most the number of tries at any task.

    Raises:
        ValueError: if there is no task, or a task has fewer than `k` tries.
    """
    return estimate_share([[pass_at_k(len(results), int(sum(results)), k)] for results in tries.values()])


def estimate_gain(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], *, seed: int = 0
) -> Estimate:
    """Mean change over the tasks that both sides measured, with a paired bootstrap interval clustered by task.

    Raises:
        ValueError: if the two sides share no task.
    """
    shared = sorted(before.keys() & after.keys())
    differences = [[float(np.mean(after[task]) - np.mean(before[task]))] for task in shared]
    return estimate_mean(differences, seed=seed)


def _cluster_means(clusters: Sequence[Sequence[float]]) -> np.ndarray:
    if not clusters or not all(len(cluster) for cluster in clusters):
        msg = "a mean needs at least one task with at least one try"
        raise ValueError(msg)
    return np.array([np.mean(cluster) for cluster in clusters])


def _bootstrap_interval(means: np.ndarray, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(means), size=(_RESAMPLES, len(means)))
    low, high = np.quantile(means[draws].mean(axis=1), [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)
