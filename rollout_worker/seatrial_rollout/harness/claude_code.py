"""The `claude-code` harness: Anthropic's command line agent, which speaks the messages API."""

from typing import override

from harbor.agents.base import BaseAgent

from seatrial_rollout.harness.proxied import Door, ProxiedHarness


class ClaudeCode(ProxiedHarness):
    """Runs in the sandbox."""

    program = "claude"

    @staticmethod
    @override
    def name() -> str:
        return "claude-code"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        from harbor.agents.installed.claude_code import ClaudeCode as Agent  # noqa: PLC0415  what it needs is much

        return Agent(
            logs_dir=self.logs_dir,
            model_name="anthropic/policy",
            base_url=door.url,
            extra_env={
                "ANTHROPIC_API_KEY": door.key,
                **self._compaction(),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "IS_SANDBOX": "1",  # or it refuses to act without asking when it is root
                "PATH": self.path(),
            },
            mcp_servers=self.mcp_servers,
        )

    def _compaction(self) -> dict[str, str]:
        if self.compacts:
            return {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(self.context_length)}
        return {"DISABLE_AUTO_COMPACT": "1"}
