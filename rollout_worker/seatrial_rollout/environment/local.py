"""Harbor environment `local`: a task's sandbox on this machine."""

from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.environment.harbor_base import SandboxEnvironment
from seatrial_rollout.environment.isolation import Isolation, Means
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.limits import Limits

_IMAGE_FILES = ("Dockerfile", "docker-compose.yaml")


class LocalEnvironment(SandboxEnvironment[LocalSandbox]):
    """Runs a task in a `LocalSandbox`; use it from Harbor by its import path.

    The task's stdio MCP servers run in the sandbox. There is no network.
    """

    def __init__(self, *args: Any, isolation: str = Isolation.AUTO, **kwargs: Any) -> None:
        """Take Harbor's arguments.

        Args:
            args: Harbor's.
            isolation: `Auto`, `Bubblewrap` or `Plain`.
            kwargs: Harbor's.
        """
        self._isolation = Isolation(isolation)  # first: the base class asks for our capabilities
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "local"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=self._isolation is not Isolation.PLAIN)

    @override
    async def open_sandbox(self) -> LocalSandbox:
        memory_mb = self._effective_memory_mb
        sandbox = await LocalSandbox.start(
            self.trial_paths.trial_dir.resolve() / f"sandbox-{self.session_id}",
            [self._server(config) for config in self.task_env_config.mcp_servers],
            workdir=self._workdir,
            limits=Limits(memory_mb=memory_mb) if memory_mb else Limits(),
            env=self._startup_env(),
            isolation=self._isolation,
        )
        if self._network_disabled and sandbox.means is Means.PLAIN:
            await sandbox.stop()
            raise SandboxStartError(f"task {self.environment_name} wants no network, which plain processes always have")
        return sandbox

    @override
    def _validate_definition(self) -> None:
        image = self.task_env_config.docker_image
        found = [name for name in _IMAGE_FILES if (self.environment_dir / name).exists()]
        if image or found:
            raise InvalidInputError(
                f"task {self.environment_name} wants a container image ({image or found[0]}), which sandbox provider"
                " 'local' cannot run; use provider 'kubernetes' or 'harbor:docker'"
            )
        for config in self.task_env_config.mcp_servers:
            self._server(config)
