"""The `codex` harness: OpenAI's command line agent, which speaks the responses API."""

from pathlib import PurePosixPath
from typing import override

from harbor.agents.base import BaseAgent

from seatrial_rollout.harness.proxied import Door, ProxiedHarness

_FOLDER = PurePosixPath("/tmp/codex")  # noqa: S108  the sandbox's own

_NEVER = 2**53
"""More tokens than any context holds."""


class Codex(ProxiedHarness):
    """Runs in the sandbox."""

    program = "codex"

    @staticmethod
    @override
    def name() -> str:
        return "codex"

    @override
    def make_agent(self, door: Door) -> BaseAgent:
        from harbor.agents.installed.codex import Codex as Agent  # noqa: PLC0415  what it needs is much

        # Where Harbor would put them, our sandboxes let nobody write.
        folders = {"_REMOTE_CODEX_HOME": _FOLDER / "home", "_REMOTE_CODEX_SECRETS_DIR": _FOLDER / "secrets"}
        return type("Codex", (Agent,), folders)(
            logs_dir=self.logs_dir,
            model_name="openai/policy",
            base_url=f"{door.url}/v1",
            config=self._context(),
            extra_env={"OPENAI_API_KEY": door.key, "PATH": self.path()},
            mcp_servers=self.mcp_servers,
        )

    def _context(self) -> dict[str, int]:
        """What it could not know of the policy."""
        limit = self.context_length - self.max_turn_tokens if self.compacts else _NEVER
        return {"model_context_window": self.context_length, "model_auto_compact_token_limit": max(limit, 1)}
