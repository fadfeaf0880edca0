"""What can go wrong with a test cluster.

ClusterError
├── MissingPartsError    this machine lacks something; says what, and what brings it
├── StartError           a copy did not come up; carries the end of the guilty log
└── CommandError         a command in or against the cluster failed; carries what it said
"""

from collections.abc import Sequence

from seatrial_api.errors import SeatrialError


class ClusterError(SeatrialError):
    """Root of the tree."""


class MissingPartsError(ClusterError):
    """This machine lacks what the grade needs."""

    def __init__(self, *, grade: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"a cluster of grade {grade} needs: {'; '.join(missing)}")


class StartError(ClusterError):
    """A copy did not come up, or ended by itself."""


class CommandError(ClusterError):
    """A command in or against the cluster failed."""

    def __init__(self, *, command: Sequence[str], status: int, output: str) -> None:
        self.command = tuple(command)
        self.status = status
        self.output = output
        super().__init__(f"`{' '.join(command)}` ended with {status}: {output.strip()}")
