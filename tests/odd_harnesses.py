"""Harnesses that misbehave, for trials that have to survive them."""

import asyncio
import gc
import os
import signal
import sys
from types import ModuleType
from typing import override

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from seatrial_rollout.harness.archipelago import Archipelago


class OddHarness(BaseAgent):
    """Sets nothing up and does one odd thing."""

    capabilities = AgentCapabilities(mcp_servers=True)

    @staticmethod
    @override
    def name() -> str:
        return "odd"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self.act(environment)

    async def act(self, environment: BaseEnvironment) -> None:
        """Be odd."""
        raise NotImplementedError


class Raising(OddHarness):
    """Has a bug."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        {}["no such key"]


class KillingItself(OddHarness):
    """Dies as by the hand of the kernel's OOM killer."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        sys.stderr.write("about to be killed\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class Exiting(OddHarness):
    """Leaves without a word."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        os._exit(3)


class Waiting(OddHarness):
    """Never ends by itself."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec("touch /workspace/started")
        await asyncio.Event().wait()


class Deaf(OddHarness):
    """Blocks its event loop, so that no signal handler runs."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec("touch /workspace/started")
        while True:
            signal.pause()


class LeavingThingsBehind(OddHarness):
    """Plants a reward and leaves a process that keeps on writing one."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec(
            "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt;"
            "(while :; do echo 42 > /workspace/answer.txt; done) > /dev/null 2>&1 &"
        )
        await environment.exec("rm -f /workspace/answer.txt; echo 0 > /workspace/done")


class FillingTheDisk(OddHarness):
    """Writes until there is no room."""

    @override
    async def act(self, environment: BaseEnvironment) -> None:
        await environment.exec("head -c 1G /dev/zero > /workspace/zeros")


class CountingImports(Archipelago):
    """Fails if the trial process had to import anything that the zygote could have."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await super().run(instruction, environment, context)
        # What was there before the fork is frozen and not among the collector's objects.
        modules = [item.__name__ for item in gc.get_objects() if isinstance(item, ModuleType)]
        if imported := sorted(name for name in modules if not name.startswith("tests")):
            raise ImportError(f"imported in the trial process: {imported}")
