"""The `single-turn` harness: one question, one answer, no tools."""

from typing import override

from harbor.environments.base import BaseEnvironment

from seatrial_rollout.harness.archipelago import Archipelago


class SingleTurn(Archipelago):
    """Lets the policy answer the task's instruction once; MCP servers of the task are left alone."""

    @staticmethod
    @override
    def name() -> str:
        return "single-turn"

    @property
    @override
    def max_steps(self) -> int:
        return 1

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """No tools, nothing to wait for."""
