"""What every step of bringing a copy up works with."""

from dataclasses import dataclass
from functools import cached_property

from hack.cluster.api_server import ApiServer
from hack.cluster.layout import BIN, Addresses, Layout
from hack.cluster.processes import Command, Processes, until
from seatrial_api.clock import Deadline

ESTABLISHED = ("jsonpath={.status.conditions[0].type}", "condition=Established")
"""What `kubectl wait` waits for until a CRD's kind is served; it fails on a condition while there is none at all."""


@dataclass(frozen=True)
class Startup:
    """A copy on its way up: its places, its processes, and the one deadline of all waits."""

    name: str
    """Of the copy on this machine, and of the cgroup that its pods are in."""
    layout: Layout
    addresses: Addresses
    processes: Processes
    deadline: Deadline

    @cached_property
    def api(self) -> ApiServer:
        """The API server, as the administrator sees it; asked for once there are certificates."""
        return ApiServer(self.addresses.url, self.layout.pki)

    async def start(self, *commands: Command) -> None:
        """Start processes, without waiting for them to serve."""
        for command in commands:
            await self.processes.start(command)

    async def served(self, path: str) -> None:
        """Wait until the API server answers 200 to a path.

        Raises:
            WaitTimeoutError: if it does not before the deadline.
        """
        await until(lambda: self.api.exists(path), what=f"the API server to serve {path}", deadline=self.deadline)

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator.

        Raises:
            StartError: if it fails.
        """
        options = (f"--kubeconfig={self.layout.pki / 'admin.kubeconfig'}", f"--cache-dir={self.layout.folder}/kubectl")
        return await self.processes.run(str(BIN / "kubectl"), *options, *arguments, stdin=stdin)
