"""How many trials can usefully be in flight, how nodes are split, and what that costs. Pure arithmetic."""

from dataclasses import dataclass

from seatrial_api.spec.operations import CostSpec
from seatrial_api.spec.topology import AgentsSpec, TopologySpec


def algorithmic_ceiling(max_staleness_steps: int, batch_size: int, group_size: int) -> int:
    """Trials that staleness admits: `(S + 1) x batch x group`; more would be too old when their turn comes."""
    return (max_staleness_steps + 1) * batch_size * group_size


def trial_places(agents: AgentsSpec) -> int:
    """Trials that the agents pods hold at once."""
    return agents.replicas * agents.hosts_per_replica * agents.trials_per_host


def systems_ceiling(kv_tokens: int, mean_trajectory_tokens: float) -> int:
    """Trials whose keys and values fit the engines' memory at once; at least 1.

    Args:
        kv_tokens: Tokens that the KV caches of all engines hold.
        mean_trajectory_tokens: Mean tokens of a trajectory over its life.
    """
    return max(1, int(kv_tokens / mean_trajectory_tokens))


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Memory that one token takes in an engine's KV cache: keys and values of every layer."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value


@dataclass(frozen=True, slots=True)
class NodeSplit:
    """Nodes by role."""

    inference: int
    train: int
    is_shared: bool
    """Whether one node does both."""

    @property
    def total(self) -> int:
        """Nodes in all."""
        return self.inference if self.is_shared else self.inference + self.train


def split_nodes(topology: TopologySpec) -> NodeSplit:
    """Nodes for inference and training, by `inferenceTrainRatio`; a single node is shared."""
    if topology.nodes == 1:
        return NodeSplit(1, 1, is_shared=True)
    inference_share, train_share = map(int, topology.inference_train_ratio.split(":"))
    unit = topology.nodes // (inference_share + train_share)
    return NodeSplit(unit * inference_share, unit * train_share, is_shared=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run, or a part of it, uses up."""

    node_hours: float = 0.0
    cached_prompt_tokens: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    judge_dollars: float = 0.0
    """What its judge has spent, at the prices of the judge's models."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.node_hours + other.node_hours,
            self.cached_prompt_tokens + other.cached_prompt_tokens,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.judge_dollars + other.judge_dollars,
        )

    def __mul__(self, times: float) -> "Usage":
        return Usage(
            self.node_hours * times,
            self.cached_prompt_tokens * times,
            self.prompt_tokens * times,
            self.completion_tokens * times,
            self.judge_dollars * times,
        )


def dollars(usage: Usage, prices: CostSpec) -> float:
    """What `usage` costs at `prices`."""
    million = 1e6
    return (
        usage.node_hours * prices.node_hour
        + usage.cached_prompt_tokens / million * prices.cached_prompt_million_tokens
        + usage.prompt_tokens / million * prices.prompt_million_tokens
        + usage.completion_tokens / million * prices.completion_million_tokens
        + usage.judge_dollars
    )
