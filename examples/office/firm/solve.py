"""Does tasks with the tools that an agent has, and keeps what they leave as the tasks' solutions."""

import tempfile
from pathlib import Path
from typing import Any

from firm.files import settled
from firm.task import Call, Task
from seatrial_sandbox.servers import SERVERS
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

_OFFICE = (".docx", ".xlsx", ".pptx")


class Clerk:
    """Somebody with the tools of all servers, who works in one workspace after another."""

    def __init__(self) -> None:
        self._workspace = Workspace(Path("/nowhere"))
        self._servers: dict[str, ToolServer] = {}

    async def work(self, workspace: Path, plan: list[Call]) -> None:
        """Make the calls of a plan, one after the other.

        Raises:
            ToolError: If one of them fails: then the plan is wrong.
        """
        self._workspace.root = workspace
        for name, arguments in plan:
            server, _, tool = name.partition("_")
            await self._server(server).call_tool(tool, dict[str, Any](arguments))

    async def outcome(self, task: Task, world: dict[str, bytes]) -> dict[str, bytes]:
        """The files that the work on a task changes or makes."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path, data in world.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
            await self.work(root, task.plan)
            after = _read(root)
        changed = {path: data for path, data in after.items() if world.get(path) != data}
        return {path: settled(data) if path.endswith(_OFFICE) else data for path, data in changed.items()}

    def _server(self, name: str) -> ToolServer:
        if name not in self._servers:
            self._servers[name] = SERVERS[name](self._workspace)
        return self._servers[name]


def _read(root: Path) -> dict[str, bytes]:
    files = (file for file in sorted(root.rglob("*")) if file.is_file())
    return {str(file.relative_to(root)): file.read_bytes() for file in files}
