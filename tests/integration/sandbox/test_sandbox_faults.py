import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from mcp import Client, MCPError

from seatrial_rollout.environment.isolation import Isolation
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.errors import (
    CommandTimeoutError,
    SandboxDiedError,
    SandboxDiskFullError,
    SandboxError,
    SandboxPathError,
    SandboxStartError,
)
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.server_spec import McpServerSpec
from tests.integration.sandbox.conftest import SERVERS, CallTool, StartSandbox, outcome
from tests.integration.sandbox.test_sandbox_isolation import processes_with
from tests.leftovers import eventually


async def running(sandbox: LocalSandbox) -> None:
    """Wait until the file `running` is in the workspace."""
    await sandbox.exec("until [ -e running ]; do :; done", timeout_seconds=30)


@pytest.mark.parametrize("victim", ["pid", "keeper"])
async def test_a_sandbox_killed_during_a_command_is_an_error_not_a_result(isolated: LocalSandbox, victim: str) -> None:
    pid = isolated.pid if victim == "pid" else isolated.keeper_pid
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        command = group.create_task(_expect_death(isolated, "touch running; sleep 600"))
        await running(isolated)
        os.kill(pid, signal.SIGKILL)
    assert command.result()
    with pytest.raises(SandboxDiedError):
        await isolated.exec("true")
    with pytest.raises(SandboxDiedError):
        async with isolated.connect("code"):
            pass


async def _expect_death(sandbox: LocalSandbox, command: str) -> bool:
    with pytest.raises(SandboxDiedError):
        await sandbox.exec(command)
    return True


async def test_a_sandbox_killed_during_a_tool_call_closes_the_session(isolated: LocalSandbox) -> None:
    async with asyncio.timeout(120), Client(isolated.connect("code")) as client, asyncio.TaskGroup() as group:
        call = group.create_task(_expect_close(client, "touch running; sleep 600"))
        await running(isolated)
        os.kill(isolated.pid, signal.SIGKILL)
    assert call.result()


async def _expect_close(client: Client, code: str) -> bool:
    with pytest.raises(MCPError, match=r"[Cc]losed"):
        await client.call_tool("code_exec", {"code": code})
    return True


async def test_a_command_out_of_time_is_killed_with_all_that_it_started(start_sandbox: StartSandbox) -> None:
    mark = uuid.uuid4().hex
    sandbox = await start_sandbox(env={"MARK": mark})
    with pytest.raises(CommandTimeoutError):
        await sandbox.exec("sleep 600 & setsid sleep 601 & (setsid setsid sleep 602 &); wait", timeout_seconds=1)
    assert (await sandbox.exec("cat /proc/[0-9]*/comm | grep sleep")).return_code == 1
    assert processes_with(mark) == []


async def test_a_command_that_nobody_waits_for_any_more_is_killed(isolated: LocalSandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await isolated.exec("sleep 600")
    gone = "for i in $(seq 1000); do cat /proc/[0-9]*/comm 2>/dev/null | grep -q sleep || exit 0; done; exit 1"
    assert (await isolated.exec(gone)).return_code == 0


async def test_a_cancelled_tool_call_is_killed(isolated: LocalSandbox) -> None:
    async with Client(isolated.connect("code")) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.call_tool("code_exec", {"code": "sleep 600"})
        assert outcome(await client.call_tool("code_exec", {"code": "echo next"})) == (False, "next")
    gone = "for i in $(seq 1000); do cat /proc/[0-9]*/comm 2>/dev/null | grep -q sleep || exit 0; done; exit 1"
    assert (await isolated.exec(gone)).return_code == 0


async def test_a_background_process_does_not_hold_up_its_command(sandbox: LocalSandbox, call: CallTool) -> None:
    async with asyncio.timeout(120):
        assert await call(sandbox, "code", "code_exec", code="sleep 600 & echo started") == (False, "started")
        assert (await sandbox.exec("sleep 600 & echo started")).stdout == "started\n"


async def test_a_failed_command_keeps_its_streams_apart(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec("echo out; echo err >&2; exit 3", cwd="/tmp", env={"A": "1"})
    assert (done.stdout, done.stderr, done.return_code) == ("out\n", "err\n", 3)
    done = await sandbox.exec("kill -9 $$")
    assert done.return_code == -signal.SIGKILL


async def test_a_command_that_cannot_start_is_an_error(sandbox: LocalSandbox) -> None:
    with pytest.raises(SandboxError, match="cannot be started"):
        await sandbox.exec("true", cwd="/nowhere")


async def test_a_server_that_hangs_holds_up_nobody_else(start_sandbox: StartSandbox, call: CallTool) -> None:
    sandbox = await start_sandbox(servers=[*SERVERS, McpServerSpec("deaf", "sleep", ["600"])])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), Client(sandbox.connect("deaf")):
            pass
    assert await call(sandbox, "code", "code_exec", code="echo fine") == (False, "fine")
    async with asyncio.timeout(120):
        await sandbox.stop()


async def test_any_stdio_server_runs_in_the_sandbox(start_sandbox: StartSandbox, tmp_path: Path) -> None:
    sandbox = await start_sandbox(servers=[McpServerSpec("own", "python3", ["server.py"])])
    (tmp_path / "server.py").write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('own')\n"
        "@server.tool(structured_output=False)\n"
        "def where() -> str:\n"
        "    import os\n"
        "    return os.getcwd()\n"
        "server.run()\n"
    )
    await sandbox.upload(tmp_path / "server.py", "server.py")
    async with asyncio.timeout(60), Client(sandbox.connect("own")) as client:
        assert outcome(await client.call_tool("where", {})) == (False, "/workspace")


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (McpServerSpec("x", "seatrial-mcp", ["crystal-ball"]), "no server 'crystal-ball'"),
        (McpServerSpec("x", "no-such-command"), "no command 'no-such-command'"),
    ],
)
async def test_a_server_that_does_not_exist_is_named_at_the_start(
    start_sandbox: StartSandbox, server: McpServerSpec, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SandboxStartError, match=reason):
        await start_sandbox("broken", servers=[server])
    assert not (tmp_path / "broken").exists()


async def test_nothing_is_copied_through_a_link_that_an_agent_made(isolated: LocalSandbox, tmp_path: Path) -> None:
    await isolated.exec(
        "ln -s /etc link; ln -s /etc/passwd file; mkdir out; ln -s /etc/passwd out/link; echo a > out/a"
    )
    (tmp_path / "a").write_text("a")
    with pytest.raises(SandboxPathError):
        await isolated.upload(tmp_path / "a", "/workspace/link/a")
    for source in ("link", "link/passwd", "file"):
        with pytest.raises(SandboxPathError):
            await isolated.download(source, tmp_path / "got")
    await isolated.download("out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    with pytest.raises(FileNotFoundError):
        await isolated.download("missing", tmp_path / "got")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


async def test_a_full_disk_says_so(small_disk: Path, tmp_path: Path, call: CallTool) -> None:
    (tmp_path / "big").write_bytes(bytes(4_000_000))
    sandbox = await LocalSandbox.start(small_disk / "sandbox", SERVERS, limits=Limits(), isolation=Isolation.AUTO)
    try:
        with pytest.raises(SandboxDiskFullError):
            await sandbox.upload(tmp_path / "big", "big")
        for server, tool, arguments in (
            ("filesystem", "write_text_file", {"path": "a.txt", "text": "x"}),
            ("sheets", "append_row", {"path": "a.csv", "values": ["x"]}),
        ):
            await sandbox.exec("printf 'h\\n' > a.csv; cat /dev/zero > fill 2>/dev/null")
            is_error, text = await call(sandbox, server, tool, **arguments)
            assert is_error
            assert "disk is full" in text
        assert (await sandbox.exec("cat a.csv")).stdout in {"h\n", ""}
    finally:
        await sandbox.stop()


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    """Plain processes, told apart by a mark."""
    sandbox = await LocalSandbox.start(
        tmp_path / "plain", SERVERS, env={"MARK": str(tmp_path)}, isolation=Isolation.PLAIN
    )
    yield sandbox
    await sandbox.stop()


async def test_plain_processes_are_hunted_down(plain: LocalSandbox, tmp_path: Path) -> None:
    await plain.exec("sleep 600 & setsid sleep 601 & (setsid setsid sleep 602 &)")
    await eventually(lambda: len(processes_with(f"MARK={tmp_path}")) >= 3, what="three sleepers")
    await plain.kill_all()
    assert not [pid for pid in processes_with(f"MARK={tmp_path}") if pid != plain.keeper_pid]
    assert (await plain.exec("ls /tests /logs/verifier")).return_code == 0


async def test_plain_processes_are_found_even_without_their_keeper(plain: LocalSandbox, tmp_path: Path) -> None:
    await plain.exec("setsid sleep 600 & (setsid setsid sleep 602 &)")
    os.kill(plain.keeper_pid, signal.SIGKILL)
    with pytest.raises(SandboxDiedError):
        await plain.exec("true")
    await plain.stop()
    assert not processes_with(f"MARK={tmp_path}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user do the work")
async def test_plain_processes_of_root_can_harm_nothing(plain: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("untouched")
    harm = f"kill -0 {os.getpid()}; echo x > $OUTSIDE; rm -f $OUTSIDE; touch /x"
    done = await plain.exec(harm, env={"OUTSIDE": str(tmp_path / "outside")})
    assert done.stderr.count("Permission denied") == 3
    assert "Operation not permitted" in done.stderr
    assert (tmp_path / "outside").read_text() == "untouched"
