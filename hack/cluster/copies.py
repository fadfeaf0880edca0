"""What is known of a copy from outside: written by its keeper, read by everybody."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from hack.cluster.layout import Grade, Layout


@dataclass(frozen=True, slots=True)
class Copy:
    """One cluster on this machine."""

    grade: Grade
    port: int
    """Of the API server on the machine's loopback."""
    keeper: int
    """Process that ends the copy when it is told to."""
    init: int | None
    """First process of the node's namespaces, as the machine counts it; only of grade node."""

    def write(self, layout: Layout) -> None:
        """Leave it in the copy's folder."""
        layout.state.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, layout: Layout) -> Self | None:
        """The copy that lives in a folder, or None if none does."""
        try:
            fields = json.loads(layout.state.read_text())
        except FileNotFoundError:
            return None
        copy = cls(**fields | {"grade": Grade(fields["grade"])})
        return copy if _is_keeper(copy.keeper, layout) else None


def _is_keeper(pid: int, layout: Layout) -> bool:
    """Whether the process is that folder's keeper, and not another that got its number later."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(layout.folder).encode() in words
