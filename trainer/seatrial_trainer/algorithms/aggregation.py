"""How token losses are averaged over a mini-batch, resolved into one weight per trajectory.

The loss of a mini-batch is the sum over its trained trajectories i and their sampled tokens t of w_i · l_{i,t}. The
weight needs only token counts, so cutting a trajectory into sequences, packing and order leave the gradient as it is.
"""

from collections.abc import Sequence
from typing import assert_never

from seatrial_api.spec.algorithm import AggregationName


def token_weights(
    counts: Sequence[Sequence[int]], aggregation: AggregationName, *, max_tokens: int | None = None
) -> list[list[float]]:
    """The weight of every sampled token of each trajectory, in the shape of `counts`.

    With T_i sampled tokens in trajectory i, N trajectories, P prompts (groups), T_p sampled tokens of prompt p:

    - `token_mean`: 1 / ΣT, every token alike (DAPO, arXiv:2503.14476, equation 8);
    - `sequence_mean`: 1 / (N · T_i), every trajectory alike (GRPO, arXiv:2402.03300, equation 3);
    - `seq_mean_token_sum_norm`: 1 / (N · L), L a constant length (Dr. GRPO, arXiv:2503.20783);
    - `prompt_mean`: 1 / (P · T_p), every prompt alike, and every token alike within one.

    Args:
        counts: Sampled tokens (at least 1) of each trained trajectory, by group.
        aggregation: The rule.
        max_tokens: L of `seq_mean_token_sum_norm`: the context length, or the longest trajectory's count if none.
    """
    groups = [group for group in counts if group]
    num_trajectories = sum(len(group) for group in groups)
    num_tokens = sum(sum(group) for group in groups)
    longest = max_tokens or max((count for group in groups for count in group), default=1)

    def weight(count: int, group_tokens: int) -> float:
        match aggregation:
            case "token_mean":
                return 1 / num_tokens
            case "sequence_mean":
                return 1 / (num_trajectories * count)
            case "seq_mean_token_sum_norm":
                return 1 / (num_trajectories * longest)
            case "prompt_mean":
                return 1 / (len(groups) * group_tokens)
            case _:
                assert_never(aggregation)

    return [[weight(count, sum(group)) for count in group] for group in counts]
