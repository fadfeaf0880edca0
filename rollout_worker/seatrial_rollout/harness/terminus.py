"""The `terminus-2` harness: Harbor's own agent, which types into a terminal of the sandbox."""

from typing import override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment

from seatrial_rollout.harness.proxied import Door, ProxiedHarness


class Terminus2(ProxiedHarness):
    """Runs here and acts on the sandbox, whose image needs tmux."""

    @staticmethod
    @override
    def name() -> str:
        return "terminus-2"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        from harbor.agents.terminus_2.terminus_2 import Terminus2 as Agent  # noqa: PLC0415  imports litellm: seconds

        return Agent(
            self.logs_dir,
            model_name="hosted_vllm/policy",
            api_base=f"{door.url}/v1",
            llm_kwargs={"api_key": door.key},
            max_turns=self.max_steps,
            model_info={
                "max_input_tokens": self.context_length,
                "max_output_tokens": self.max_turn_tokens,
                "input_cost_per_token": 0.0,
                "output_cost_per_token": 0.0,
            },
            enable_summarize=self.compacts,
            record_terminal_session=False,
            suppress_max_turns_warning=True,
            mcp_servers=self.mcp_servers,
        )

    @override
    async def prepare(self, agent: BaseAgent, environment: BaseEnvironment) -> None:
        await agent.setup(environment)

    @override
    async def tidy(self, environment: BaseEnvironment) -> None:
        await environment.exec('tmux kill-server; rm -rf "/tmp/tmux-$(id -u)"')
