"""Trials of our harnesses in tests: a scripted policy, real MCP servers in memory, no sandbox around them."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbor.models.agent.context import AgentContext
from harbor.models.task.config import MCPServerConfig
from mcp.client._memory import InMemoryTransport
from mcp.server import MCPServer

from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessLimits, HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.harness.archipelago import Archipelago
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.harness.setting import HarnessSetting
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.session import GeneratesTokens
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.request import TrialRequest
from tests.chat_models import ChatModel
from tests.scripted_engine import Said, ScriptedEngine


@dataclass
class MemorySandbox:
    """Real MCP servers that are talked to in memory, and a place for uploads."""

    servers: Mapping[str, MCPServer]
    uploads: dict[str, str] = field(default_factory=dict)
    is_broken: bool = False

    def connect(self, server: str) -> AbstractAsyncContextManager[Any]:
        """An MCP transport to one of the servers."""
        return InMemoryTransport(self.servers[server])

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Keep the file's text."""
        if self.is_broken:
            raise ConnectionResetError("the sandbox is gone")
        self.uploads[target_path] = Path(source_path).read_text()  # noqa: ASYNC240  a few bytes

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Hand an uploaded text out."""
        if source_path not in self.uploads:
            raise FileNotFoundError(source_path)
        Path(target_path).write_text(self.uploads[source_path])  # noqa: ASYNC240  a few bytes


@dataclass
class Harness:
    """Runs agents on a scripted policy."""

    model: ChatModel
    folder: Path

    def agent(
        self,
        engine: GeneratesTokens,
        sandbox: MemorySandbox,
        *,
        clock: TrialClock | None = None,
        kind: type[Archipelago] = Archipelago,
        context_length: int = 100_000,
        max_steps: int = 20,
        limits: Mapping[str, Any] | None = None,
        compaction: bool = False,
        notebook: bool = False,
        **options: Any,
    ) -> Archipelago:
        """An agent in its setting, not yet set up."""
        spec = HarnessSpec(limits=HarnessLimits(**(limits or {})), compaction=compaction, notebook=notebook)
        request = TrialRequest(
            trial_id="trial-1",
            group_id="group-1",
            purpose="Train",
            task="task",
            task_path=self.folder,
            domain="office",
            start_version=0,
            harness=spec,
            sampling=Sampling(),
            max_steps=max_steps,
            sandbox=SandboxSpec(),
            policy=Policy(self.model.path, context_length),
        )
        configs = [MCPServerConfig(name=name, transport="stdio", command="unused") for name in sandbox.servers]
        setting = HarnessSetting(request, engine, clock or TrialClock(spec.limits.agent_timeout_seconds))
        with setting.current():
            return kind(self.folder / "logs", mcp_servers=configs, **options)

    async def run(
        self,
        script: Iterable[Said | str],
        servers: Mapping[str, MCPServer] | None = None,
        sandbox: MemorySandbox | None = None,
        **options: Any,
    ) -> HarnessRecord:
        """An agent's whole run; what it leaves is checked to be token-exact."""
        engine = ScriptedEngine(self.model.template, script)
        sandbox = sandbox or MemorySandbox(servers or {})
        agent = self.agent(engine, sandbox, **options)
        await agent.setup(sandbox)
        await agent.run("What does the lamp cost?", sandbox, AgentContext())
        self.check(agent.record)
        return agent.record

    def check(self, record: HarnessRecord) -> None:
        """Prove that the record is token-exact."""
        assert verify(stored(record), self.model.template) == []

    def call(self, name: str, **arguments: Any) -> str:
        """A tool call as the model writes it."""
        return self.model.family.text_of_call(name, arguments)

    def given_text(self, record: HarnessRecord, sequence_index: int = 0) -> str:
        """What the policy was given over a sequence, as text."""
        sequence = record.sequences[sequence_index]
        pairs = zip(sequence.token_ids, sequence.loss_mask, strict=True)
        return self.model.template.decode([token for token, mask in pairs if not mask])


def stored(record: HarnessRecord) -> Trajectory:
    """The trajectory that would be stored of a record."""
    return Trajectory(
        trial_id="trial-1",
        group_id="group-1",
        task="task",
        domain="office",
        purpose="Train",
        harness="archipelago",
        start_version=0,
        outcome=Outcome.COMPLETED,
        reward=1.0,
        sequences=record.sequences,
        turns=record.turns,
        given=record.given,
    )
