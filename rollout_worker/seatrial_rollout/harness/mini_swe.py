"""The `mini-swe-agent` harness: a shell and a loop around it."""

from typing import override

from harbor.agents.base import BaseAgent

from seatrial_rollout.harness.proxied import Door, ProxiedHarness


class MiniSweAgent(ProxiedHarness):
    """Runs in the sandbox."""

    program = "mini-swe-agent"

    @staticmethod
    @override
    def name() -> str:
        return "mini-swe-agent"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        from harbor.agents.installed.mini_swe_agent import MiniSweAgent as Agent  # noqa: PLC0415  what it needs is much

        return Agent(
            logs_dir=self.logs_dir,
            model_name="openai/policy",
            base_url=f"{door.url}/v1",
            model_api_format="openai_chat_completions",
            extra_env={
                "OPENAI_API_KEY": door.key,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "PATH": self.path(),
            },
        )
