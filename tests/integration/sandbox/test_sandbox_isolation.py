import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.errors import SandboxDiedError, SandboxError, SandboxPathError
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.processes import readable
from tests.integration.sandbox.conftest import CallTool, StartSandbox


async def output(sandbox: LocalSandbox, command: str) -> str:
    done = await sandbox.exec(command, timeout_seconds=60)
    return (done.stdout + done.stderr).strip()


def processes_with(value: str) -> list[int]:
    """Processes of this machine whose environment holds a value."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if value.encode() in environment:
                found.append(int(entry.name))
    return found


async def test_there_is_no_network(isolated: LocalSandbox) -> None:
    interfaces = await output(isolated, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    assert interfaces == "lo"
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "Network is unreachable" in await output(isolated, f'python3 -c "{connect}"')


async def test_the_host_is_out_of_sight(isolated: LocalSandbox) -> None:
    assert await output(isolated, f"cat {__file__}") == f"cat: {__file__}: No such file or directory"
    assert "No such file" in await output(isolated, "cat /etc/shadow")
    home = Path.home()
    visible = set((await output(isolated, f"ls -A {home} 2>/dev/null")).split())
    needed = {
        Path(prefix).relative_to(home).parts[0]
        for prefix in (sys.prefix, sys.base_prefix)
        if Path(prefix).is_relative_to(home)
    }
    assert visible <= needed
    names = {line.partition("=")[0] for line in (await output(isolated, "env")).splitlines()}
    assert names <= {
        "HOME",
        "LANG",
        "PATH",
        "PWD",
        "PYTHONNOUSERSITE",
        "SEATRIAL_COMMAND",
        "SHLVL",
        "TERM",
        "USER",
        "_",
    }


async def test_nothing_but_its_own_folders_can_be_written(isolated: LocalSandbox) -> None:
    folders = "/ /usr /etc /dev /home /tests /logs /logs/verifier /logs/agent /logs/artifacts /tmp /solution . ~"
    script = f"for folder in {folders}; do touch $folder/x 2>/dev/null && echo $folder; done"
    assert (await output(isolated, script)).split() == [
        "/logs/agent",
        "/logs/artifacts",
        "/tmp",
        "/solution",
        ".",
        "/home/agent",
    ]


async def test_one_user_without_any_privilege(isolated: LocalSandbox) -> None:
    assert await output(isolated, "whoami") == "agent"
    status = await output(isolated, "grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs)' /proc/self/status | cut -f2")
    assert status.split() == ["0" * 16, "0" * 16, "0" * 16, "1"]


async def test_sandboxes_neither_see_nor_kill_each_other(start_sandbox: StartSandbox) -> None:
    one, two = await start_sandbox("one"), await start_sandbox("two")
    await output(one, "sleep 600 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done")
    assert "sleep" in await output(one, "cat /proc/[0-9]*/comm")
    assert "sleep" not in await output(two, "cat /proc/[0-9]*/comm")
    await output(one, "echo secret > /workspace/secret; chmod 777 /workspace/secret")
    await two.exec("kill -9 -1")
    assert await output(two, "ls -A /workspace") == ""
    assert "sleep" in await output(one, "cat /proc/[0-9]*/comm")


async def test_an_agent_that_kills_all_it_can_does_not_end_its_sandbox(isolated: LocalSandbox, call: CallTool) -> None:
    await call(isolated, "code", "code_exec", code="kill -9 -1; kill -9 1; kill -STOP 1")
    assert await call(isolated, "code", "code_exec", code="echo still here") == (False, "still here")
    assert await output(isolated, "echo and here") == "and here"


async def test_a_fork_bomb_stays_within_its_limit(start_sandbox: StartSandbox) -> None:
    mark = uuid.uuid4().hex
    bombed = await start_sandbox("bombed", limits=Limits(processes=40), env={"MARK": mark})
    other = await start_sandbox("other")
    await bombed.exec("bomb() { bomb | bomb & }; bomb 2>complaints & until [ -s complaints ]; do :; done")
    complaints = (bombed._layout.root / "workspace/complaints").read_text()
    assert "Resource temporarily unavailable" in complaints
    assert len(processes_with(mark)) <= 40
    assert await output(other, "echo unharmed") == "unharmed"
    await bombed.kill_all()
    assert await output(bombed, "set -- /proc/[0-9]*; echo $#") == "2"  # process 1 and this command
    await bombed.stop()
    assert not processes_with(mark)


async def test_memory_and_file_size_are_limited(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(limits=Limits(memory_mb=256, file_mb=1))
    assert "MemoryError" in await output(sandbox, "python3 -c 'bytearray(400 << 20)'")
    assert "File too large" in await output(sandbox, 'python3 -c \'open("big", "wb").write(bytes(2 << 20))\'')


@pytest.mark.parametrize(
    "fill",
    [
        "for i in $(seq 40); do mkdir -p d; head -c 1048576 /dev/zero > d/$i; done; chmod 0 d",
        "for i in $(seq 60); do mkdir -p e/$i; touch e/$i/{1..20}; done",
    ],
    ids=["bytes", "files"],
)
async def test_a_sandbox_that_fills_the_disk_is_ended_and_says_why(start_sandbox: StartSandbox, fill: str) -> None:
    sandbox = await start_sandbox(limits=Limits(disk_mb=8, files=400))
    other = await start_sandbox("other")
    with pytest.raises(SandboxDiedError, match="the sandbox was ended: it holds more files"):
        await sandbox.exec(f"{fill}; sleep 120", timeout_seconds=120)
    assert await output(other, "echo unharmed") == "unharmed"


async def test_no_process_outlives_its_sandbox(start_sandbox: StartSandbox) -> None:
    mark = uuid.uuid4().hex
    sandbox = await start_sandbox(env={"MARK": mark})
    await output(sandbox, "setsid sleep 600 >/dev/null 2>&1 & (setsid setsid sleep 601 >/dev/null 2>&1 &)")
    assert processes_with(mark)
    await sandbox.stop()
    assert not processes_with(mark)
    assert not sandbox._layout.root.exists()


async def test_processes_end_with_an_owner_that_is_killed(start_sandbox: StartSandbox, tmp_path: Path) -> None:
    await start_sandbox()  # skips where there is no isolation
    script = f"""
        import asyncio, sys
        from pathlib import Path
        from seatrial_rollout.environment.sandbox import LocalSandbox

        async def main():
            sandbox = await LocalSandbox.start(Path({str(tmp_path / "owned")!r}), [])
            await sandbox.exec("setsid sleep 600 >/dev/null 2>&1 &")
            print(sandbox.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)  # noqa: ASYNC220
    with owner:
        assert owner.stdout is not None
        first_process = os.pidfd_open(int(owner.stdout.readline()))
        owner.send_signal(signal.SIGKILL)
    try:
        await readable(first_process)
    finally:
        os.close(first_process)


async def test_what_an_agent_prepares_does_not_reach_the_verifier(isolated: LocalSandbox, tmp_path: Path) -> None:
    await isolated.exec(
        "mkdir -p /tests /logs/verifier; echo 'echo fooled' > $HOME/.bashrc; mkdir -p ~/bin; cp /bin/false ~/bin/true;"
        "(setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; touch alive; sleep 0.01; done' 2>/dev/null &)"
    )
    await isolated.kill_all()
    assert isolated.phase is Phase.VERIFY
    assert await output(isolated, "ls -A /tests /logs/verifier $HOME") == "/home/agent:\n\n/logs/verifier:\n\n/tests:"
    assert await output(isolated, "rm -f /workspace/alive; sleep 0.1; ls -A /workspace") == ""
    assert await output(isolated, "set -- /proc/[0-9]*; echo $#") == "2"  # process 1 and this command
    (tmp_path / "test.sh").write_text("x")
    await isolated.upload(tmp_path / "test.sh", "/tests/test.sh")
    assert await output(isolated, "cat /tests/test.sh") == "x"


async def test_files_survive_the_change_of_phase_and_stay_the_agents_own(isolated: LocalSandbox) -> None:
    await output(isolated, "umask 077; echo mine > /workspace/private")
    await isolated.kill_all()
    assert await output(isolated, "cat private; echo more >> private; cat private") == "mine\nmine\nmore"


async def test_tests_cannot_be_uploaded_while_the_agent_acts(isolated: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "test.sh").write_text("x")
    with pytest.raises(SandboxPathError):
        await isolated.upload(tmp_path / "test.sh", "/tests/test.sh")


async def test_mcp_servers_are_gone_when_the_verifier_acts(isolated: LocalSandbox) -> None:
    await isolated.kill_all()
    with pytest.raises(SandboxError, match="no MCP server 'code'"):
        async with isolated.connect("code"):
            pass


def test_an_ordinary_users_namespaces_can_be_entered() -> None:
    ask = "from seatrial_rollout.environment import isolation as i, probe; print(probe._try(i.Means.USER_NAMESPACE))"
    # A process of its own: the kernel gives no namespace of users to one whose libraries start threads when it forks.
    reason = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    if "failed" in reason:
        pytest.skip(reason)
    assert reason == ""
