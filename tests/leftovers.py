"""What a part leaves behind on the machine, and bounded waits for what other processes do."""

from collections.abc import Callable
from pathlib import Path

from seatrial_api.clock import SYSTEM_CLOCK, Deadline


def processes_using(folder: Path) -> list[int]:
    """Processes that have the folder on their command line or mounted somewhere."""
    return [pid for pid in all_processes() if _uses(pid, str(folder).encode())]


def name_of(pid: int) -> str:
    """The process's name; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def mapped_files(pid: int) -> str:
    """What a process has mapped, libraries among them."""
    return Path(f"/proc/{pid}/maps").read_text()


def all_processes() -> list[int]:
    """Every process that can be seen."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def descendants(pid: int) -> set[int]:
    """The process's children, their children and so on."""
    children: dict[int, list[int]] = {}
    for other in all_processes():
        children.setdefault(_parent_of(other), []).append(other)
    found: set[int] = set()
    to_visit = [pid]
    while to_visit:
        new = set(children.get(to_visit.pop(), [])) - found
        found |= new
        to_visit += new
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _uses(pid: int, name: bytes) -> bool:
    try:
        return any(name in Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "mountinfo"))
    except OSError:
        return False


def mounts_in(folder: Path) -> list[str]:
    """Mounts below the folder that this process sees."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.split()[4].startswith(str(folder))]


async def eventually(condition: Callable[[], object], *, what: str, seconds: float = 20.0) -> None:
    """Wait for something that another process does; looking takes a fifth of the time at most.

    Raises:
        WaitTimeoutError: if it does not happen in time.
    """
    deadline = Deadline.after(seconds)
    while True:
        began = SYSTEM_CLOCK.now()
        if condition():
            return
        deadline.check(what)
        await SYSTEM_CLOCK.sleep(max(0.01, 4 * (SYSTEM_CLOCK.now() - began)))
