"""What a local sandbox costs: start, tool call, end and memory.

    python bench/sandbox_start.py [--starts 50] [--isolation Auto]

CPU counts every process that takes part: this one, the zygote, the keeper and bubblewrap.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mcp import Client

from seatrial_rollout.environment.isolation import Isolation
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_rollout.environment.zygote import zygote_address
from seatrial_sandbox.server_spec import McpServerSpec

SERVERS = [McpServerSpec(name, "seatrial-mcp", [name]) for name in ("filesystem", "sheets", "code")]
CALLS = 200
TOGETHER = 16


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU that living processes have used so far."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def pss_mib(pid: int) -> float:
    """Proportional memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    """Children of a process."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def family(sandbox: LocalSandbox) -> list[int]:
    """The processes that hold a sandbox together."""
    keeper = sandbox.keeper_pid
    return [keeper, *children(keeper), *(grandchild for child in children(keeper) for grandchild in children(child))]


def row(name: str, values: Sequence[float]) -> None:
    """Print the median and the 95th percentile."""
    print(f"{name:42} p50 {statistics.median(values):7.2f}   p95 {statistics.quantiles(values, n=20)[-1]:7.2f}")


async def one_start(root: Path, isolation: Isolation, zygote: int, figures: dict[str, list[float]]) -> None:
    """Start, list the tools of every server, end."""
    cpu_before = time.process_time() + cpu_seconds([zygote])
    begun = time.perf_counter()
    sandbox = await LocalSandbox.start(root, SERVERS, isolation=isolation)
    figures["start, wall (ms)"].append((time.perf_counter() - begun) * 1e3)
    used = time.process_time() + cpu_seconds([zygote, *family(sandbox)]) - cpu_before
    figures["start, CPU (ms)"].append(used * 1e3)
    for server in SERVERS:
        begun = time.perf_counter()
        async with Client(sandbox.connect(server.name)) as client:
            await client.list_tools()
            figures["connect, initialize, list (ms)"].append((time.perf_counter() - begun) * 1e3)
    begun = time.perf_counter()
    await sandbox.kill_all()
    figures["kill all, begin Verify (ms)"].append((time.perf_counter() - begun) * 1e3)
    begun = time.perf_counter()
    await sandbox.stop()
    figures["stop and delete (ms)"].append((time.perf_counter() - begun) * 1e3)


async def calls(root: Path, isolation: Isolation, figures: dict[str, list[float]]) -> None:
    """Call one cheap tool of every server many times."""
    sandbox = await LocalSandbox.start(root, SERVERS, isolation=isolation)
    await sandbox.exec("printf 'name,count\\nbolt,42\\n' > stock.csv")
    for server, tool, arguments in (
        ("filesystem", "read_text_file", {"path": "stock.csv"}),
        ("sheets", "lookup", {"path": "stock.csv", "row": "bolt", "column": "count"}),
        ("code", "code_exec", {"code": "true"}),
    ):
        async with Client(sandbox.connect(server)) as client:
            await client.call_tool(tool, arguments)
            cpu_before = cpu_seconds([sandbox.keeper_pid])
            for _ in range(CALLS):
                begun = time.perf_counter()
                await client.call_tool(tool, arguments)
                figures[f"{server}_{tool}, wall (ms)"].append((time.perf_counter() - begun) * 1e3)
            used = (cpu_seconds([sandbox.keeper_pid]) - cpu_before) * 1e3 / CALLS
            figures[f"{server}_{tool}, keeper CPU (ms)"] += [used, used]
    for _ in range(CALLS // 4):
        begun = time.perf_counter()
        await sandbox.exec("true")
        figures["exec true, wall (ms)"].append((time.perf_counter() - begun) * 1e3)
    await sandbox.stop()


async def memory(root: Path, isolation: Isolation) -> float:
    """MiB that each of many sandboxes adds, their servers in use."""
    sandboxes = [await LocalSandbox.start(root / str(i), SERVERS, isolation=isolation) for i in range(TOGETHER)]
    for sandbox in sandboxes:
        for server in SERVERS:
            async with Client(sandbox.connect(server.name)) as client:
                await client.list_tools()
    used = sum(pss_mib(pid) for sandbox in sandboxes for pid in family(sandbox))
    for sandbox in sandboxes:
        await sandbox.stop()
    return used / TOGETHER


async def main(starts: int, isolation: Isolation) -> None:
    """Measure and print."""
    await zygote_address(isolation)
    (zygote,) = children(os.getpid())
    figures: dict[str, list[float]] = {
        name: []
        for name in (
            "start, wall (ms)",
            "start, CPU (ms)",
            "connect, initialize, list (ms)",
            "kill all, begin Verify (ms)",
            "stop and delete (ms)",
        )
    }
    with tempfile.TemporaryDirectory() as folder:
        for number in range(starts):
            await one_start(Path(folder, str(number)), isolation, zygote, figures)
        for tool in ("filesystem_read_text_file", "sheets_lookup", "code_code_exec"):
            figures[f"{tool}, wall (ms)"] = []
            figures[f"{tool}, keeper CPU (ms)"] = []
        figures["exec true, wall (ms)"] = []
        await calls(Path(folder, "calls"), isolation, figures)
        used = await memory(Path(folder, "memory"), isolation)
    for name, values in figures.items():
        row(name, values)
    print(f"{f'memory, each of {TOGETHER} at once (MiB PSS)':42} {used:11.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--isolation", type=Isolation, choices=list(Isolation), default=Isolation.AUTO)
    options = parser.parse_args()
    asyncio.run(main(options.starts, options.isolation))
