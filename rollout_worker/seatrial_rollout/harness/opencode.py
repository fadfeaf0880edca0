"""The `opencode` harness: a command line agent with sub-agents and compaction of its own."""

from typing import Any, override

from harbor.agents.base import BaseAgent

from seatrial_rollout.harness.proxied import Door, ProxiedHarness

_OFFLINE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
_KEY = "SEATRIAL_PROXY_KEY"


class OpenCode(ProxiedHarness):
    """Runs in the sandbox."""

    program = "opencode"

    @staticmethod
    @override
    def name() -> str:
        return "opencode"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        from harbor.agents.installed.opencode import OpenCode as Agent  # noqa: PLC0415  what it needs is much

        return Agent(
            logs_dir=self.logs_dir,
            model_name="seatrial/policy",
            opencode_config=self._config(door),
            extra_env={**_OFFLINE, _KEY: door.key, "PATH": self.path()},
            mcp_servers=self.mcp_servers,
        )

    def _config(self, door: Door) -> dict[str, Any]:
        """What makes it ask the proxy, and nobody for a title: that would be a turn that earns nothing."""
        model = {
            "name": "policy",
            "tool_call": True,
            "reasoning": True,
            "interleaved": {"field": "reasoning_content"},
            "limit": {"context": self.context_length, "output": self.max_turn_tokens},
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{door.url}/v1", "apiKey": f"{{env:{_KEY}}}"},
            "models": {"policy": model},
        }
        return {
            "provider": {"seatrial": provider},
            "agent": {"title": {"disable": True}},
            "autoupdate": False,
            "share": "disabled",
            "compaction": {"auto": self.compacts, "prune": False},
            "snapshot": False,
        }
