"""What an agent did in a sandbox on this machine, for the audit."""

from dataclasses import dataclass, field
from functools import cache

from seatrial_api.finding import Finding, FindingKind
from seatrial_sandbox.layout import Layout
from seatrial_sandbox.processes import ProcessTable, still_there
from seatrial_sandbox.state.examination import Audit, agent_state, audit
from seatrial_sandbox.state.manifest import Hasher, Manifest
from seatrial_sandbox.text import printable


@dataclass(slots=True)
class Inspector:
    """Looks at one sandbox's folders and processes from the host; its methods block."""

    layout: Layout
    hasher: Hasher
    incidents: list[Finding] = field(default_factory=list, init=False)
    """What was undone when the agent's phase ended."""
    _before: Manifest = field(default_factory=lambda: Manifest({}), init=False)

    def remember(self) -> None:
        """Take what the agent may write, as it is now, for what it finds."""
        self._before = agent_state(self.layout, self.hasher)

    def audit(self) -> Audit:
        """What is remarkable in what has become of what the agent found, and in what was undone."""
        return audit(self.layout, self._before, agent_state(self.layout, self.hasher), self.incidents)

    def note_processes(self, keeper: int, init: int | None) -> None:
        """Remember what of the agent's still runs when all is about to be ended.

        Args:
            keeper: The process that serves the sandbox.
            init: First process of its namespaces, which orphans come to; where there is none, they come to the keeper.
        """
        table = host_processes()
        left = table.family(keeper)
        if init is not None:
            left |= table.family(init)
            left -= {init, *table.children(keeper)}  # bubblewrap, and whatever somebody waits for
        if names := table.names(left):
            self.incidents.append(Finding(kind=FindingKind.LEFT_RUNNING, detail=printable(still_there(names))))


@cache
def host_processes() -> ProcessTable:
    """All processes of this machine, or of this container."""
    return ProcessTable()
