"""Harbor environment `kubernetes`: a task in a sandbox pod that was claimed for it."""

import asyncio
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities
from mcp import Client

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import InvalidInputError
from seatrial_api.sandboxes import GATEWAY_SERVER, TELL
from seatrial_rollout.environment.changed_files import ChangedFile, changed_files
from seatrial_rollout.environment.harbor_base import SandboxEnvironment
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.source import SandboxSource
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.layout import TESTS

_LOOK_SECONDS = 60.0
"""For one answer: a gateway may start its servers for every session."""
_POLL_SECONDS = 0.5


class KubernetesEnvironment(SandboxEnvironment[RemoteSandbox]):
    """Runs a task in a pod of a world; use it from Harbor by its import path.

    The pod is warm already and has the world's image; what a task adds to it is uploaded. Its MCP servers are those
    that the world's sandboxes have, over stdio or HTTP whatever the task says; one of stdio that they lack is refused.
    """

    def __init__(
        self,
        *args: Any,
        source: str,
        world: str,
        slug: str = "",
        keeps_initial: bool = False,
        source_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take Harbor's arguments.

        Args:
            args: Harbor's.
            source: Import path, `module:name`, of what makes a `SandboxSource`.
            world: Name of the WorldImage whose sandboxes hold the task.
            slug: Of the task, for a gateway that is started for it; the task's name if empty.
            keeps_initial: Whether the verifier shall have the files as they were before the agent.
            source_config: Keyword arguments that it is called with.
            kwargs: Harbor's.

        Raises:
            InvalidInputError: If there is no such source.
        """
        self._source = _source(source, source_config or {})
        self._world, self._slug, self._keeps_initial = world, slug, keeps_initial
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "kubernetes"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @override
    async def open_sandbox(self) -> RemoteSandbox:
        sandbox = await RemoteSandbox.claim(self._source, self._world, self.session_id)
        try:
            self._check(sandbox)
            await self._begin_task(sandbox)
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        if self._keeps_initial:
            await self.sandbox.download(self._workdir, self._initial)

    async def bring_initial(self) -> None:
        """Put the files as they were before the agent into `/tests/initial`, if they are kept; links are left out."""
        if self._keeps_initial:
            await self.sandbox.upload(self._initial, f"{TESTS}/initial")

    def has_server(self, name: str) -> bool:
        """Whether the sandbox has an MCP server of this name, whatever it speaks."""
        return name in self.sandbox.facts.mcp_servers

    async def why_lost(self) -> str:
        """Why the sandbox is gone; empty if it is not, or nobody knows."""
        return "" if self._sandbox is None else await self._sandbox.why_lost()

    @property
    @override
    def _workdir(self) -> str:
        """The task's; of a task that names none, the world's."""
        return str(self.task_env_config.workdir or self.sandbox.facts.workdir)

    @property
    def _initial(self) -> Path:
        folder: Path = self.trial_paths.trial_dir
        return folder / "initial"

    async def changed_files(self) -> list[ChangedFile]:
        """What the agent changed in the workdir since the task's files were in place, in phase Verify."""
        return await changed_files(self.sandbox.client, self._workdir)

    @override
    def _validate_definition(self) -> None:
        """Which servers there are is known once there is a sandbox."""

    def _check(self, sandbox: RemoteSandbox) -> None:
        """Refuse a task that the world's sandboxes cannot hold.

        Raises:
            InvalidInputError: If the workdir or an MCP server is another than the task's.
        """
        facts, workdir = sandbox.facts, self.task_env_config.workdir
        if workdir and facts.workdir != workdir:
            raise InvalidInputError(
                f"task {self.environment_name} has workdir {workdir}, sandboxes of world {self._world!r} have"
                f" {facts.workdir}"
            )
        wanted = {config.name for config in self.task_env_config.mcp_servers if config.transport == "stdio"}
        if missing := sorted(wanted.difference(facts.mcp_servers)):
            raise InvalidInputError(
                f"task {self.environment_name} wants MCP servers {', '.join(missing)}, which sandboxes of world"
                f" {self._world!r} do not have: {', '.join(sorted(facts.mcp_servers)) or 'none'}"
            )

    async def _begin_task(self, sandbox: RemoteSandbox) -> None:
        """Tell a gateway that waits for it the task, and wait until it serves: it may bring files of its own."""
        if not sandbox.facts.awaits_task:
            return
        told = await sandbox.exec(shlex.join([*TELL, self._slug or self.environment_name]))
        if told.return_code:
            raise SandboxStartError(f"the gateway cannot be told its task: {told.stderr or told.stdout}")
        while not await _lists_tools(sandbox):
            await SYSTEM_CLOCK.sleep(_POLL_SECONDS)
            await sandbox.client.health()  # if it has died there is nothing to wait for


async def _lists_tools(sandbox: RemoteSandbox) -> bool:
    """Whether the gateway does, at this moment."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS), Client(sandbox.connect(GATEWAY_SERVER), cache=None) as client:
            return bool((await client.list_tools()).tools)
    except Exception:  # noqa: BLE001  not yet, whatever is said by what is not there yet
        return False


def _source(path: str, config: Mapping[str, Any]) -> SandboxSource:
    module, _, name = path.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"source is {path!r}, which cannot be imported: {error}") from error
    source: SandboxSource = make(**config)
    return source
