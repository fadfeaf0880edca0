"""What every provider of sandboxes does alike."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from mcp import Client, MCPError

from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.interface import Sandbox
from seatrial_rollout.environment.isolation import Isolation, Means
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.errors import CommandTimeoutError, SandboxError, SandboxPathError
from tests.integration.sandbox.conftest import SERVERS, outcome
from tests.sandbox_daemons import DaemonSource, means, no_isolation


@pytest.fixture(params=["local", "sandboxd"])
async def any_sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox of each provider, isolated, with our MCP servers."""
    if means() is Means.PLAIN:
        pytest.skip(no_isolation())
    sandbox: Sandbox
    if request.param == "local":
        sandbox = await LocalSandbox.start(tmp_path / "sandbox", SERVERS, isolation=Isolation.BUBBLEWRAP)
    else:
        source = DaemonSource(servers=[server.name for server in SERVERS])
        sandbox = await RemoteSandbox.claim(source, "world", "trial")
    yield sandbox
    await sandbox.stop()
    await sandbox.stop()  # does no harm


async def said(sandbox: Sandbox, command: str) -> str:
    done = await sandbox.exec(command, timeout_seconds=60)
    return (done.stdout + done.stderr).strip()


async def test_commands_have_streams_status_folder_and_environment(any_sandbox: Sandbox) -> None:
    done = await any_sandbox.exec("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.return_code) == ("out\n", "err\n", 3)
    assert (await any_sandbox.exec("kill -9 $$")).return_code == -signal.SIGKILL
    done = await any_sandbox.exec("pwd; echo $A; echo $HOME", cwd="/tmp", env={"A": "1"})
    assert done.stdout.split() == ["/tmp", "1", "/home/agent"]
    assert await said(any_sandbox, "pwd; whoami") == "/workspace\nagent"
    with pytest.raises(SandboxError, match="cannot be started"):
        await any_sandbox.exec("true", cwd="/nowhere")
    assert len((await any_sandbox.exec("head -c 3000000 /dev/zero | tr '\\0' x")).stdout) < 1_001_000


async def test_a_command_out_of_time_or_out_of_favour_takes_all_that_it_started_along(any_sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeoutError):
        await any_sandbox.exec("sleep 600 & setsid sleep 601 & (setsid setsid sleep 602 &); wait", timeout_seconds=1)
    assert await said(any_sandbox, "cat /proc/[0-9]*/comm | grep sleep") == ""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await any_sandbox.exec("sleep 600")
    gone = "for i in $(seq 1000); do cat /proc/[0-9]*/comm 2>/dev/null | grep -q sleep || exit 0; done; exit 1"
    assert (await any_sandbox.exec(gone)).return_code == 0
    async with asyncio.timeout(120):
        assert await said(any_sandbox, "sleep 600 >/dev/null 2>&1 & echo started") == "started"


async def test_files_go_in_and_out_and_never_through_links(any_sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/run.sh").write_text("echo ran")
    (tmp_path / "in/sub/run.sh").chmod(0o755)
    await any_sandbox.upload(tmp_path / "in", "/workspace/up")
    await any_sandbox.upload(tmp_path / "in/sub/run.sh", "/workspace/alone/run.sh")
    assert await said(any_sandbox, "up/sub/run.sh; alone/run.sh") == "ran\nran"
    await any_sandbox.exec("ln -s /etc/passwd up/passwd; ln -s /etc etc; mkfifo up/pipe; chmod 600 up/sub/run.sh")
    await any_sandbox.download("/workspace/up", tmp_path / "out")
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")) == [
        "sub",
        "sub/run.sh",
    ]
    await any_sandbox.download("/workspace/alone/run.sh", tmp_path / "one/run.sh")
    assert (tmp_path / "one/run.sh").read_text() == "echo ran"
    for path in (
        "/workspace/up/passwd",
        "/workspace/etc/passwd",
        "/etc/passwd",
        "/workspace/../etc/passwd",
        "/logs/verifier/x",
    ):
        with pytest.raises(SandboxPathError):
            await any_sandbox.download(path, tmp_path / "stolen")
        with pytest.raises(SandboxPathError):
            await any_sandbox.upload(tmp_path / "in/sub", path if path != "/workspace/up/passwd" else "/workspace/etc")
    with pytest.raises(FileNotFoundError):
        await any_sandbox.download("/workspace/none", tmp_path / "none")
    assert not (tmp_path / "stolen").exists()


async def test_tools_answer_the_agent_and_nobody_else(any_sandbox: Sandbox) -> None:
    async with Client(any_sandbox.connect("code")) as client:
        assert outcome(await client.call_tool("code_exec", {"code": "echo $PWD > made; cat made"})) == (
            False,
            "/workspace",
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.call_tool("code_exec", {"code": "sleep 600"})
    with suppress(MCPError, ExceptionGroup):  # some providers lose the session, never the server
        async with Client(any_sandbox.connect("code")) as client:
            await client.call_tool("code_exec", {"code": "kill -9 -1; kill -9 1"})
    async with Client(any_sandbox.connect("filesystem")) as client:
        assert outcome(await client.call_tool("read_text_file", {"path": "made"})) == (False, "/workspace\n")
    with pytest.raises(SandboxError, match="no MCP server 'mail'"):
        async with any_sandbox.connect("mail"):
            pass
    await any_sandbox.kill_all()
    with pytest.raises(SandboxError, match=r"no MCP server 'code'|does not allow"):
        async with any_sandbox.connect("code"):
            pass


async def test_what_an_agent_prepares_does_not_reach_the_verifier(any_sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "test.sh").write_text("real")
    with pytest.raises(SandboxPathError):
        await any_sandbox.upload(tmp_path / "test.sh", "/tests/test.sh")
    await any_sandbox.exec(
        "echo mine > kept; mkdir -p /tests /logs/verifier; echo 1 > /logs/verifier/reward.txt;"
        " echo fake > /tests/test.sh; echo 'echo fooled' > ~/.bashrc;"
        "(env -i setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; touch alive; done' >/dev/null 2>&1 &)"
    )
    await any_sandbox.kill_all()
    await any_sandbox.kill_all()  # does no harm
    assert any_sandbox.phase is Phase.VERIFY
    assert await said(any_sandbox, "ls -A /tests /logs/verifier $HOME | grep -v :") == ""
    assert await said(any_sandbox, "rm -f alive; sleep 0.2; ls -A; cat kept") == "kept\nmine"
    assert await said(any_sandbox, "set -- /proc/[0-9]*; echo $#") == "2"  # the first process and this command
    await any_sandbox.upload(tmp_path / "test.sh", "/tests/test.sh")
    assert await said(any_sandbox, "cat /tests/test.sh; echo 0 > /logs/verifier/reward.txt") == "real"
    await any_sandbox.download("/logs/verifier", tmp_path / "logs")
    assert (tmp_path / "logs/reward.txt").read_text() == "0\n"
