"""What is done from outside a sandbox while an attempt is under way, and what came of it in one line."""

import asyncio
import io
from pathlib import Path
from typing import TYPE_CHECKING

from mcp import Client, MCPError
from mcp.types import TextContent

from seatrial_api.clock import Deadline
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.trials.rewards import VerifierError, parse_rewards
from seatrial_sandbox.errors import SandboxDataError, SandboxError, SandboxLimitError, SandboxPathError
from tests.unit.sandbox.test_snapshots import SHA, listing, made

if TYPE_CHECKING:
    from tests.escapes.arena import Arena

_ROUNDS = 40
_PATIENCE_SECONDS = 90.0
_BUDGET = 1_200_000
"""Most characters that a command or tool may hand on, notes included."""


async def still_there(arena: "Arena") -> str:
    """Whether the sandbox and its tools still work."""
    said = await _tool(arena, "echo still here")
    return "refused: still there" if said == "still here" else f"got through: {said}"


async def genuine_answer(arena: "Arena") -> str:
    """Whether the tool server that answers is ours."""
    deadline, said = Deadline.after(_PATIENCE_SECONDS), ""
    while not said and deadline.remaining > 0:  # while the agent still kills them, nobody answers
        for _ in range(5):
            said = await _tool(arena, "echo genuine")
            if said not in {"genuine", ""}:
                return f"got through: {said}"
    return "refused: genuine" if said == "genuine" else f"got through: {said!r}"


async def long_answer(arena: "Arena") -> str:
    """How much of an endless answer comes out."""
    tool = len(await _tool(arena, "bash flood.sh"))
    command = len((await arena.attacker.exec("bash flood.sh; bash flood.sh >&2")).stdout)
    return "refused: cut" if 1000 < tool < _BUDGET and 1000 < command < _BUDGET else f"got through: {tool}, {command}"


async def quick_answer(arena: "Arena") -> str:
    """Whether a call is answered while what it started still holds its output."""
    try:
        async with asyncio.timeout(40):
            said = await _tool(arena, "bash hold.sh")
    except TimeoutError:
        return "got through: no answer"
    return "refused: answered" if said == "done" else f"got through: {said}"


async def fetch_through_link(arena: "Arena") -> str:
    """What is fetched of links, by their names and with their folder."""
    for name in ("0", "1", "2"):
        try:
            await arena.attacker.download(f"/workspace/report/sub/{name}", arena.folder / "stolen")
        except SandboxPathError:
            continue
        return f"got through: link {name}"
    await arena.attacker.download("/workspace/report", arena.folder / "report")
    found = [path for path in (arena.folder / "report").rglob("*") if not path.is_dir()]
    return f"got through: {found}" if found else "refused: left behind"


async def fetch_while_swapped(arena: "Arena") -> str:
    """What is fetched of a file that is a link every other moment."""
    seen = set()
    for round_ in range(_ROUNDS):
        target = arena.folder / f"swap-{round_}"
        try:
            await arena.attacker.download("/workspace/swap/report", target)
        except (SandboxPathError, FileNotFoundError, SandboxError):
            continue
        seen.add(target.read_text())
    return f"got through: {seen}" if seen - {"mine", ""} else "refused: its own"


async def put_where_swapped(arena: "Arena") -> str:
    """Where files land that are sent through a folder that is a link every other moment."""
    source = arena.folder / "sent"
    (source / "d").mkdir(parents=True)
    for number in range(20):
        (source / f"d/{number}").write_text("sent")
    for _ in range(_ROUNDS // 4):
        try:
            await arena.attacker.upload(source, "/workspace/up")
        except (SandboxError, FileNotFoundError):
            continue
    inside = (await arena.attacker.exec("ls -A /tmp/elsewhere")).stdout
    landed = [inside, *(str(path) for folder in arena.outside_folders for path in folder.iterdir())]
    return f"got through: {landed}" if any(landed) else "refused: nothing elsewhere"


async def fetch_named_oddly(arena: "Arena") -> str:
    """Where files with odd names land."""
    before = set(arena.folder.iterdir())
    try:
        await arena.attacker.download("/workspace/odd", arena.folder / "odd")
    except (SandboxError, OSError) as exc:
        return f"got through: {exc}"
    beside = set(arena.folder.iterdir()) - before - {arena.folder / "odd"}
    return f"got through: {beside}" if beside else "refused: kept below"


async def deep_folders(arena: "Arena") -> str:
    """What becomes of a tree that is too deep."""
    try:
        await arena.attacker.download("/tmp/deep", arena.folder / "deep")
    except SandboxPathError:
        return "refused: SandboxPathError"
    depth = max((len(path.parts) for path in (arena.folder / "deep").rglob("*")), default=0)
    return "refused: left behind" if depth < 100 else f"got through: {depth}"


async def others_are_served(arena: "Arena") -> str:
    """Whether a neighbour's command runs."""
    said = (await arena.neighbour.exec("echo served")).stdout
    return "refused: others are served" if said == "served\n" else f"got through: {said}"


async def lying_archive(arena: "Arena") -> str:
    """What sandboxd says to archives that lie about their size."""
    if not isinstance(arena.attacker, RemoteSandbox):
        raise TypeError("only sandboxd takes archives")
    lines = []
    for archive in (_bomb, _understated):
        try:
            await arena.attacker.client.upload(archive(), pb.TreeTarget(path="/workspace/bomb"))
        except (SandboxLimitError, SandboxDataError) as exc:
            lines.append(f"refused: {type(exc).__name__}")
        else:
            lines.append("got through")
    return "\n".join(lines)


def _bomb() -> io.BytesIO:
    """A kilobyte that unpacks to 9 GiB: one content, and many files that have it."""
    rows = [[f"x{number}", "File", 420, 1 << 30, SHA, ""] for number in range(9)]
    return made([("blobs/" + SHA, b"x"), listing(*rows)])


def _understated() -> io.BytesIO:
    """An archive whose content is another than its name says, and larger."""
    return made([("blobs/" + SHA, bytes(1 << 20)), listing(["x", "File", 420, 1, SHA, ""])])


async def is_verdict_of_tests(arena: "Arena") -> str:
    """Whether the reward is what the tests said."""
    reward = _read(arena.verdict / "reward.txt")
    return "refused: 0" if reward == "0" else f"got through: {reward}"


async def two_rewards_are_none(arena: "Arena") -> str:
    """What is made of a reward that comes beside the verifier's."""
    try:
        rewards = parse_rewards(_read(arena.verdict / "reward.json"), _read(arena.verdict / "reward.txt"))
    except VerifierError:
        return "refused: VerifierError"
    return f"got through: {rewards}"


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() and not path.is_symlink() else None


async def _tool(arena: "Arena", code: str) -> str:
    """What the tool `code_exec` says, or nothing where the session breaks off."""
    said = []
    try:
        async with asyncio.timeout(60), Client(arena.attacker.connect("code")) as client:
            result = await client.call_tool("code_exec", {"code": code})
            said = [part.text for part in result.content if isinstance(part, TextContent)]
    except* (MCPError, ConnectionError, SandboxError, EOFError):
        pass
    return "".join(said)
