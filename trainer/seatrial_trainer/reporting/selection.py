"""Choosing trajectories to look at."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seatrial_api.trajectory import Trajectory
from seatrial_trainer.reporting.failures import tool_name


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that a trajectory has to meet; an empty one is met by all."""

    task: str = ""
    """Part of the task's name."""
    outcome: str = ""
    domain: str = ""
    tool: str = ""
    """A tool that was called, as `server_tool`."""
    failed_tool_calls: bool = False
    """Only trials with a tool call that was answered with an error."""
    infrastructure: bool = False
    """Only trials that infrastructure ended."""
    finding: str = ""
    """A kind of thing that the sandbox's audit found."""
    max_reward: float | None = None
    min_reward: float | None = None

    def of(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Those that meet every condition."""
        return (trajectory for trajectory in trajectories if self.matches(trajectory))

    def matches(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory meets every condition."""
        called = {tool_name(call) for turn in trajectory.turns for call in turn.tool_calls}
        return (
            self.task in trajectory.task
            and self.outcome in {"", trajectory.outcome.value}
            and self.domain in {"", trajectory.domain}
            and (not self.tool or self.tool in called)
            and (not self.failed_tool_calls or trajectory.num_failed_tool_calls > 0)
            and (not self.infrastructure or trajectory.outcome.is_infrastructure)
            and (not self.finding or any(self.finding == one.kind for one in trajectory.findings))
            and self._reward_matches(trajectory.reward)
        )

    def _reward_matches(self, reward: float | None) -> bool:
        if self.max_reward is not None and (reward is None or reward > self.max_reward):
            return False
        return self.min_reward is None or (reward is not None and reward >= self.min_reward)
