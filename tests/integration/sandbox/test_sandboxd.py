"""What only `sandboxd` does: tokens, transfers that go on, snapshots, diffs, audits, and what it refuses."""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

import grpc
import pytest
from grpc import aio

from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.protos.sandboxd_pb2_grpc import SandboxdStub
from seatrial_api.sandbox_token import Method, Phase
from seatrial_api.sandboxd_config import SandboxLimits
from seatrial_rollout.environment.calls import metadata
from seatrial_rollout.environment.isolation import Means
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandboxd_client import SandboxdClient
from seatrial_sandbox.errors import (
    CommandTimeoutError,
    SandboxAccessError,
    SandboxDataError,
    SandboxDiedError,
    SandboxError,
    SandboxPathError,
    SandboxStateError,
)
from tests.sandbox_daemons import Daemon, DaemonSource, means, no_isolation
from tests.unit.sandbox.test_snapshots import SHA, listing, made

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon for all tests of the agent's phase; few processes may run in it."""
    started = Daemon.start(limits=SandboxLimits(processes=40, file_mb=64))
    yield started
    started.stop()


@pytest.fixture
async def sandbox(daemon: Daemon) -> AsyncIterator[RemoteSandbox]:
    """The module's sandbox, whose workspace is emptied after the test."""
    sandbox = RemoteSandbox(DaemonSource(), daemon)
    yield sandbox
    await sandbox.exec("rm -rf /workspace/* /workspace/.[!.]* /tmp/*; kill -9 -1")
    await sandbox.stop(delete=False)


@pytest.fixture
async def own_sandbox() -> AsyncIterator[Callable[[], Awaitable[RemoteSandbox]]]:
    """Starts sandboxes that a test may use up."""
    async with AsyncExitStack() as stack:

        async def start() -> RemoteSandbox:
            sandbox = await RemoteSandbox.claim(DaemonSource(), "world", "trial-1")
            stack.push_async_callback(sandbox.stop)
            return sandbox

        yield start


async def said(sandbox: RemoteSandbox, command: str) -> str:
    done = await sandbox.exec(command, timeout_seconds=60)
    return (done.stdout + done.stderr).strip()


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(aio.AioRpcError) as raised:
        await call
    return raised.value.code()


# Tokens


async def test_no_call_is_answered_without_a_good_token(daemon: Daemon) -> None:
    async with aio.insecure_channel(daemon.address) as channel:
        stub = SandboxdStub(channel)
        for shown in ((), (("authorization", daemon.token(Phase.AGENT)),), metadata("x.y.z")):
            health = stub.Health(pb.HealthRequest(), metadata=shown)
            assert await code_of(health) is grpc.StatusCode.UNAUTHENTICATED
            assert (
                await code_of(stub.Exec(pb.ExecRequest(argv=["true"]), metadata=shown).read())
                is grpc.StatusCode.UNAUTHENTICATED
            )


async def test_a_kubelets_probe_needs_no_token_and_learns_nothing(daemon: Daemon) -> None:
    async with aio.insecure_channel(daemon.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"  # status: SERVING


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"age": 700.0}, id="expired"),
        pytest.param({"sandbox": "sandbox-of-somebody-else"}, id="another sandbox"),
        pytest.param({"trial": "trial-2"}, id="another trial"),
        pytest.param({"phase": Phase.VERIFY}, id="before verification"),
        pytest.param({"methods": [Method.HEALTH]}, id="another method"),
    ],
)
async def test_a_token_replayed_elsewhere_or_later_is_refused(
    daemon: Daemon, sandbox: RemoteSandbox, claims: dict[str, object]
) -> None:
    await sandbox.exec("true")  # binds the sandbox to its trial
    client = SandboxdClient(daemon.address, lambda _: daemon.signed(**claims))  # type: ignore[arg-type]  # parameters
    with pytest.raises(SandboxAccessError):
        await client.exec(pb.ExecRequest(argv=["true"]), _ignore)
    await client.close()


async def test_a_session_that_is_refused_always_tells_why(daemon: Daemon) -> None:
    """The refusal must not lose a race against what the client sends."""
    client = SandboxdClient(daemon.address, lambda _: "x.y.z")
    for _ in range(200):
        with pytest.raises(SandboxAccessError):
            async with client.connect("code"):
                pass
    await client.close()


async def _ignore(_data: bytes, _is_stderr: bool) -> None:
    return


async def test_the_agent_finds_neither_key_nor_token_nor_the_daemons_memory(sandbox: RemoteSandbox) -> None:
    reads = "cat /proc/1/environ /proc/1/mem /proc/1/maps; ls /proc/1/fd/ /proc/1/cwd/; env | grep SEATRIAL_S"
    answers = await said(sandbox, reads)
    assert answers.count("Permission denied") == 5
    assert "BEGIN PUBLIC KEY" not in answers
    assert "SEATRIAL_S" not in answers
    trace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert await said(sandbox, f'python3 -c "{trace}"') == "-1"


# Processes


async def test_the_daemon_outlives_every_signal(sandbox: RemoteSandbox) -> None:
    await sandbox.exec("for s in $(seq 1 64); do kill -$s 1; done; kill -9 -1")
    assert await said(sandbox, "echo alive") == "alive"


async def test_a_process_that_sheds_session_parent_and_environment_dies_with_its_command(
    sandbox: RemoteSandbox,
) -> None:
    escape = "(env -i setsid bash -c '(env -i setsid sleep 611 &) ; exit' &); sleep 600"
    with pytest.raises(CommandTimeoutError):
        await sandbox.exec(escape, timeout_seconds=1)
    assert await said(sandbox, "cat /proc/[0-9]*/comm | grep sleep") == ""


async def test_a_fork_bomb_within_its_limit_leaves_the_daemon_at_work(sandbox: RemoteSandbox) -> None:
    with pytest.raises(CommandTimeoutError):
        await sandbox.exec("for i in {1..400}; do sleep 600 & done 2>/dev/null; sleep 600", timeout_seconds=2)
    assert (await sandbox.client.health()).processes < 40
    assert await said(sandbox, "echo alive") == "alive"


async def test_output_without_end_is_cut_and_stopped(sandbox: RemoteSandbox) -> None:
    received = 0

    async def count(data: bytes, _is_stderr: bool) -> None:
        nonlocal received
        received += len(data)

    request = pb.ExecRequest(argv=["bash", "-c", "yes & yes >&2"], timeout_seconds=1, max_output_bytes=100_000)
    ended = await sandbox.client.exec(request, count)
    assert ended.timed_out
    assert received == 200_000
    assert ended.stdout_dropped_bytes > 0


async def test_a_process_that_keeps_its_output_open_does_not_hold_up_its_command(sandbox: RemoteSandbox) -> None:
    async with asyncio.timeout(120):
        assert await said(sandbox, "(while :; do echo more; done) & echo done; exec >&- 2>&-")


async def test_the_dead_are_buried(sandbox: RemoteSandbox) -> None:
    await sandbox.exec("for i in 1 2 3; do (setsid sleep 0 &); done")
    buried = "for i in $(seq 400); do grep -sq '^State:.Z' /proc/[0-9]*/status || exit 0; sleep 0.02; done; exit 1"
    assert (await sandbox.exec(buried)).return_code == 0


# Files


async def test_a_link_put_in_the_way_while_files_arrive_is_never_followed(
    sandbox: RemoteSandbox, tmp_path: Path
) -> None:
    (tmp_path / "in/d").mkdir(parents=True)
    for number in range(40):
        (tmp_path / f"in/d/{number}").write_text("new")
    await sandbox.exec(
        "mkdir -p /tmp/out up; (while :; do rm -rf up/d; ln -s /tmp/out up/d; rm -f up/d; mkdir -p up/d; done)"
        " >/dev/null 2>&1 &"
    )
    for _ in range(5):
        try:
            await sandbox.upload(tmp_path / "in", "/workspace/up")
        except (SandboxPathError, SandboxError, FileNotFoundError):
            continue
    assert await said(sandbox, "ls -A /tmp/out") == ""


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/mem",
        "/dev/shm/x",
        "/tests/test.sh",
        "/logs/verifier/reward.txt",
        "/workspace/../etc/x",
        "relative/../../x",
    ],
)
async def test_nothing_is_written_where_the_agents_phase_has_nothing(sandbox: RemoteSandbox, path: str) -> None:
    with pytest.raises(SandboxPathError):
        await sandbox.client.upload(io.BytesIO(b"x"), pb.FileTarget(path=path))


async def test_a_folder_in_the_way_of_a_file_is_told(sandbox: RemoteSandbox) -> None:
    await sandbox.exec("mkdir -p d/full; touch d/full/x")
    for path in ("/workspace/d", "/workspace"):
        with pytest.raises(SandboxPathError):
            await sandbox.client.upload(io.BytesIO(b"x"), pb.FileTarget(path=path))


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(io.BytesIO(b"garbage"), id="garbage"),
        pytest.param(made([("blobs/" + SHA, b"x"), listing(["../x", "File", 420, 1, SHA, ""])]), id="traversal"),
        pytest.param(made([("blobs/" + SHA, b"y"), listing(["x", "File", 420, 1, SHA, ""])]), id="wrong content"),
        pytest.param(
            made(
                [("blobs/" + SHA, b"x"), listing(["l", "Link", 511, 0, "", "/tmp"], ["l/x", "File", 420, 1, SHA, ""])]
            ),
            id="through its own link",
        ),
    ],
)
async def test_a_hostile_tree_leaves_nothing_behind(sandbox: RemoteSandbox, hostile: io.BytesIO) -> None:
    with pytest.raises(SandboxDataError):
        await sandbox.client.upload(hostile, pb.TreeTarget(path="/workspace"))
    with pytest.raises((SandboxDataError, SandboxStateError)):
        await sandbox.client.restore([hostile], "0" * 64)
    assert await said(sandbox, "ls -A /workspace /tmp | grep -v :") == ""


async def test_a_pipe_instead_of_a_file_holds_nobody_up(sandbox: RemoteSandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkfifo report")
    async with asyncio.timeout(120):
        with pytest.raises(SandboxPathError):
            await sandbox.download("/workspace/report", tmp_path / "report")
        await sandbox.client.snapshot(None)


# Broken connections


@asynccontextmanager
async def breaking(daemon: Daemon, folder: Path, after_bytes: int, times: int) -> AsyncIterator[str]:
    """An address that leads to the daemon, where the first connections break once they have carried so much."""
    left = times
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: list[int]) -> None:
        while data := await reader.read(1 << 14):
            budget[0] -= len(data)
            if budget[0] < 0:
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        budget = [after_bytes if left > 0 else 1 << 60]
        left -= 1
        there = await asyncio.open_unix_connection(daemon.address.removeprefix("unix:"))
        writers.extend((writer, there[1]))
        ways = [carry(reader, there[1], budget), carry(there[0], writer, budget)]
        with suppress(ConnectionError):
            for ended in asyncio.as_completed(ways):
                await ended
                break
        writer.close()
        there[1].close()

    path = folder / "p.sock"
    async with await asyncio.start_unix_server(accept, path):
        yield f"unix:{path}"
        for writer in writers:
            writer.close()


async def test_transfers_go_on_after_the_connection_broke(daemon: Daemon, sandbox: RemoteSandbox) -> None:
    content = os.urandom(6 << 20)
    with TemporaryFile() as got:
        async with breaking(daemon, daemon.folder, 4 << 20, times=2) as address:
            client = SandboxdClient(address, daemon.token)
            await client.upload(io.BytesIO(content), pb.FileTarget(path="/workspace/big"))
            await client.close()
        async with breaking(daemon, daemon.folder, 4 << 20, times=2) as address:
            client = SandboxdClient(address, daemon.token)
            await client.download(pb.DownloadRequest(path="/workspace/big"), got)
            await client.close()
        got.seek(0)
        assert got.read() == content
    assert await said(sandbox, "stat -c %s big") == str(len(content))


async def test_a_file_that_changed_while_it_was_fetched_is_fetched_anew(daemon: Daemon, sandbox: RemoteSandbox) -> None:
    await sandbox.exec("head -c 6291456 /dev/zero > big")
    with TemporaryFile() as got:
        start = await sandbox.client.download(pb.DownloadRequest(path="/workspace/big"), got)
        await sandbox.exec("echo other > big")
        stub = sandbox.client._stub
        asked = pb.DownloadRequest(path="/workspace/big", offset=1000, version=start.version)
        late = stub.Download(asked, metadata=metadata(daemon.token(Phase.AGENT)))
        assert await code_of(late.read()) is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_sandbox_that_ends_during_a_command_is_an_error_not_a_result(
    own_sandbox: Callable[[], Awaitable[RemoteSandbox]],
) -> None:
    sandbox = await own_sandbox()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        command = group.create_task(_expect_death(sandbox))
        await sandbox.exec("until [ -e running ]; do sleep 0.01; done")
        assert isinstance(sandbox._claimed, Daemon)
        sandbox._claimed.stop()
    assert command.result()


async def _expect_death(sandbox: RemoteSandbox) -> bool:
    with pytest.raises(SandboxDiedError):
        await sandbox.exec("touch running; sleep 600")
    return True


# Snapshots, verification


async def test_a_sandbox_that_is_lost_goes_on_in_another_with_the_same_files(
    own_sandbox: Callable[[], Awaitable[RemoteSandbox]],
) -> None:
    first = await own_sandbox()
    await first.client.snapshot(None)
    await first.exec("echo one > a; mkdir -m 700 d; ln -s a l; head -c 100000 /dev/urandom > d/big; echo home > ~/x")
    with TemporaryFile() as base, TemporaryFile() as delta:
        before = await first.client.snapshot(base)
        await first.exec("echo two > b; rm a")
        after = await first.client.snapshot(delta, base=before.name)
        assert after.archive_bytes < before.archive_bytes // 10
        second = await own_sandbox()
        await second.exec("echo junk > junk; mkdir b")
        await second.client.restore([base, delta], after.name)
        assert (await second.client.snapshot(None)).name == after.name
    assert await said(second, "cat b ~/x; readlink l; stat -c %a d; ls") == "two\nhome\na\n700\nb\nd\nl"


async def test_verification_sees_what_the_agent_did_and_none_of_its_calls_reach_into_it(
    own_sandbox: Callable[[], Awaitable[RemoteSandbox]], tmp_path: Path
) -> None:
    sandbox = await own_sandbox()
    assert isinstance(sandbox._claimed, Daemon)
    daemon = sandbox._claimed
    await sandbox.exec("echo old > changed.txt; echo x > removed.txt")
    await sandbox.client.snapshot(None)
    await sandbox.exec(
        "echo new > changed.txt; rm removed.txt; printf '#!/bin/sh\\n' > run; chmod 4755 run; ln -s /etc/passwd out;"
        " printf 'ghp_%036d' 0 > keys.txt; printf '\\x7fELF' > a.pdf; mkfifo pipe; chmod 0 keys.txt;"
        " rm -rf /tests/x; touch /tests/x; mkdir -p /logs/verifier; ln -s /workspace/fake /logs/verifier/reward.json"
    )
    with pytest.raises(SandboxPathError):
        await sandbox.client.upload(io.BytesIO(b"1"), pb.FileTarget(path="/logs/verifier/reward.txt"))
    await sandbox.exec("(setsid sleep 611 >/dev/null 2>&1 &)")
    agent = SandboxdClient(daemon.address, lambda _: daemon.token(Phase.AGENT))
    async with asyncio.TaskGroup() as group:
        under_way = group.create_task(_expect_refusal(agent, "sleep 600"))
        await sandbox.exec("until cat /proc/[0-9]*/comm | grep -q '^sleep'; do :; done")
        frozen = await sandbox.client.freeze()
    assert under_way.result()
    assert frozen.killed_processes >= 1
    assert sorted(frozen.removed_paths) == ["/logs/verifier/reward.json", "/tests/x"]
    assert await _expect_refusal(agent, "echo 1 > /logs/verifier/reward.txt")
    with pytest.raises(SandboxAccessError):
        await agent.upload(io.BytesIO(b"1"), pb.FileTarget(path="/logs/verifier/reward.txt"))
    await agent.close()

    changes, summary = await sandbox.client.diff(pb.DiffRequest(extract=True))
    kinds = {change.path: pb.Change.Kind.Name(change.kind) for change in changes}
    assert kinds["/workspace/changed.txt"] == "KIND_CHANGED"
    assert kinds["/workspace/removed.txt"] == "KIND_REMOVED"
    assert kinds["/workspace/run"] == "KIND_ADDED"
    assert (summary.changed, summary.removed, summary.truncated) == (1, 1, False)
    extracts = {change.path: change.extract for change in changes}
    assert extracts["/workspace/changed.txt"].parts[0].text == "new\n"
    assert extracts["/workspace/a.pdf"].error
    findings, counted = await sandbox.client.audit(pb.AuditRequest())
    found = {(finding.path, pb.Finding.Kind.Name(finding.kind)) for finding in findings}
    assert {
        ("/workspace/run", "KIND_SETUID"),
        ("/workspace/run", "KIND_EXECUTABLE"),
        ("/workspace/out", "KIND_OUTWARD_LINK"),
        ("/workspace/keys.txt", "KIND_SECRET"),
        ("/workspace/a.pdf", "KIND_DISGUISED"),
        ("/workspace/pipe", "KIND_SPECIAL_FILE"),
        ("/tests/x", "KIND_TAMPERING"),
        ("", "KIND_LEFT_RUNNING"),
        ("", "KIND_REFUSED"),
    } <= found
    assert counted.files == 4
    denied = " ".join(finding.detail for finding in findings if finding.kind == pb.Finding.KIND_REFUSED)
    assert "reward.txt" in denied

    (tmp_path / "test.sh").write_text(
        "(setsid env -i bash -c 'sleep 0.3; echo 1 > /logs/verifier/reward.txt' &) ; echo 0 > /logs/verifier/reward.txt"
    )
    await sandbox.upload(tmp_path / "test.sh", "/tests/test.sh")
    await sandbox.exec("bash /tests/test.sh")
    await sandbox.exec("sleep 0.5")
    assert await said(sandbox, "cat /logs/verifier/reward.txt") == "0"  # what a test left behind could not change it


async def _expect_refusal(client: SandboxdClient, command: str) -> bool:
    with pytest.raises(SandboxAccessError):
        await client.exec(pb.ExecRequest(argv=["bash", "-c", command]), _ignore)
    return True
