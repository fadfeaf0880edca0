"""A text that the harness keeps in the sandbox, in the folder of the agent's logs."""

import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from seatrial_rollout.harness.errors import SandboxFailedError
from seatrial_sandbox.errors import SandboxPathError


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """One file, which the agent may change, too."""

    environment: BaseEnvironment
    logs_dir: Path
    """The folder's twin on the host."""
    environment_logs_dir: PurePosixPath
    name: str

    async def write(self, text: str) -> None:
        """Put a text there.

        Raises:
            SandboxFailedError: It could not be written.
        """
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        source = self.logs_dir / self.name
        source.write_text(text)
        try:
            await self.environment.upload_file(source, self._target)
        except Exception as exc:
            raise SandboxFailedError(f"{self._target} could not be written: {type(exc).__name__}: {exc}") from exc

    async def read(self) -> str:
        """The text; empty if there is none.

        Raises:
            SandboxFailedError: It could not be read.
        """
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / self.name
            try:
                await self.environment.download_file(self._target, found)
            except (FileNotFoundError, SandboxPathError):
                return ""
            except Exception as exc:
                raise SandboxFailedError(f"{self._target} could not be read: {type(exc).__name__}: {exc}") from exc
            return found.read_text(errors="replace") if found.is_file() else ""

    @property
    def _target(self) -> str:
        return str(self.environment_logs_dir / self.name)
