"""What it costs that a trial survives its sandbox, and how long it stands still when it has to.

    python -m bench.replay_cost [--calls 40] [--rounds 1]

Real `sandboxd` processes behind Unix sockets, on this machine: no network is between, and claiming a sandbox, which
here means to start one, is left out (see `broker_claims`). Every call appends to a file and writes another one; the
calls themselves are the same for every k, so that only what the snapshots add differs.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mcp import Client

from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.saved_files import SavedFiles
from tests.sandbox_daemons import DaemonSource

EVERY = (5, 1, 20)
"""Calls between snapshots. The first is the one that is restored: its base is the world alone, as in a trial."""
RESTORED = EVERY[0]
WORLDS = {"small world, 60 files, 0.6 MB": (60, 10_000), "large world, 2,000 files, 100 MB": (2_000, 50_000)}
"""Files, and bytes of each."""
WRITTEN = {"4 kB a call": 4_000, "1 MB a call": 1_000_000}


@dataclass
class Figures:
    """Times of one world and one way to write, in milliseconds."""

    first: float = 0.0
    """Looking at a world for the first time, before the agent acts."""
    call: list[float] = field(default_factory=list)
    added: dict[int, list[float]] = field(default_factory=lambda: {every: [] for every in EVERY})
    """Of each call, by calls between snapshots."""
    kept_kb: dict[int, float] = field(default_factory=dict)
    """Size of all archives of a trial, by calls between snapshots."""
    restore: list[float] = field(default_factory=list)
    """A fresh sandbox with the world's files gets the agent's, all snapshots of the trial together."""


def make_world(folder: Path, num_files: int, size: int) -> Path:
    """Files that do not compress well."""
    draw = random.Random(0)  # noqa: S311  no secret
    for index in range(num_files):
        path = folder / f"folder-{index % 20}" / f"file-{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))
    return folder


@asynccontextmanager
async def sandbox_of(world: Path) -> AsyncIterator[RemoteSandbox]:
    """A sandbox with a world's files."""
    sandbox = await RemoteSandbox.claim(DaemonSource(servers=["code"]), "world", "trial")
    try:
        await sandbox.upload(world, "/workspace")
        yield sandbox
    finally:
        await sandbox.stop()


async def one_round(world: Path, calls: int, written: int, folder: Path, figures: Figures) -> None:
    """A trial for every k, one after the other in one sandbox; then another one is given what the last one left."""
    async with sandbox_of(world) as sandbox, Client(sandbox.connect("code")) as client:
        for every in EVERY:
            saved = SavedFiles()
            begun = time.perf_counter()
            await saved.begin(sandbox)
            figures.first = max(figures.first, since(begun))
            added = 0.0
            for number in range(1, calls + 1):
                code = f"echo {number} >> log; head -c {written} /dev/urandom > out-{number % 7}"
                begun = time.perf_counter()
                await client.call_tool("code_exec", {"code": code})
                figures.call.append(since(begun))
                if number % every == 0:
                    begun = time.perf_counter()
                    await sandbox.num_processes()
                    await saved.save(sandbox, folder)
                    added += since(begun)
            figures.added[every].append(added / calls)
            figures.kept_kb[every] = sum(archive.seek(0, 2) for archive in saved.archives) / 1e3
            if every != RESTORED:
                saved.close()
                continue
            async with sandbox_of(world) as other:
                begun = time.perf_counter()
                await saved.begin(other)
                figures.restore.append(since(begun))
            saved.close()


def since(begun: float) -> float:
    """Milliseconds."""
    return (time.perf_counter() - begun) * 1e3


async def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    print("| world, written | first look | a call | added a call, k = 1 | k = 5 | k = 20 | kept, k = 5 | restore |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (num_files, size) in WORLDS.items():
            world = make_world(Path(scratch, name), num_files, size)
            for how, written in WRITTEN.items():
                figures = Figures()
                for _ in range(arguments.rounds):
                    await one_round(world, arguments.calls, written, Path(scratch), figures)
                added = " | ".join(f"{statistics.median(figures.added[every]):.1f} ms" for every in sorted(EVERY))
                print(
                    f"| {name}; {how} | {figures.first:.0f} ms"
                    f" | {statistics.median(figures.call):.0f} ms | {added} | {figures.kept_kb[5]:,.0f} kB"
                    f" | {statistics.median(figures.restore):.0f} ms |",
                    flush=True,
                )


if __name__ == "__main__":
    asyncio.run(main())
