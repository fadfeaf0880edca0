"""Sandbox pods on a real node, as the broker makes them: every kind, with and without image volumes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import TextContent

from hack.cluster import Cluster
from hack.cluster.images.samples import BUSYBOX, busybox_image
from hack.cluster.images.worlds import GATEWAY, GATEWAY_PORT, OFFICE, gateway_image, office_image
from seatrial_api.protos import sandboxd_pb2 as pb
from seatrial_api.sandbox_token import Method, Phase
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandboxd_client import SandboxdClient, Tokens
from seatrial_sandbox.errors import CommandTimeoutError, SandboxAccessError
from tests.sandbox_pods import SandboxPod, SandboxPods, runtime_class, sandbox_pods

pytestmark = pytest.mark.timeout(900)

type Take = Callable[[str], Awaitable[RemoteSandbox]]

SIDECAR = {"name": "notes", "image": GATEWAY, "port": GATEWAY_PORT}
SILENT = {**SIDECAR, "path": "/elsewhere/"}
FILES = {"image": OFFICE, "source": "/workspace/budget", "target": "/data"}
COPIED = {"has_image_volumes": False}


@pytest.fixture(scope="module")
def pods(node: Cluster) -> Iterator[SandboxPods]:
    """One sandbox of every kind."""
    images = busybox_image(), office_image(), gateway_image()
    with runtime_class(node, "plain", "runc"), sandbox_pods(node, "sandboxes-on-node", *images) as made:
        made.create("office", OFFICE, plan={"runtime_class": "plain"})
        made.create("replacement", OFFICE, plan=COPIED, populate=[FILES])
        made.create("bare", BUSYBOX, mcp={"servers": ["filesystem"]}, populate=[FILES], env={"PYTHONHOME": "/nowhere"})
        made.create("sidecars", OFFICE, mcp={"kind": "Sidecars", "sidecars": [SIDECAR]})
        made.create("gateway", GATEWAY, mcp={"kind": "Archipelago", "port": GATEWAY_PORT})
        made.create("broken", OFFICE, populate=[{"image": BUSYBOX, "source": "/nowhere"}])
        made.create("silent", OFFICE, mcp={"kind": "Sidecars", "sidecars": [SILENT], "readyTimeoutSeconds": 5})
        made.await_ready("office", "replacement", "bare", "sidecars", "gateway")
        yield made


@pytest.fixture
async def take(pods: SandboxPods) -> AsyncIterator[Take]:
    """Connects to sandboxes, and hangs up after the test; nobody gives them back."""
    async with AsyncExitStack() as stack:

        async def connect(name: str) -> RemoteSandbox:
            sandbox = await RemoteSandbox.claim(pods, name, "trial-1")
            stack.push_async_callback(sandbox.stop, delete=False)
            return sandbox

        yield connect


async def shell(sandbox: RemoteSandbox, command: str) -> tuple[int, str]:
    """Status and output of a command, by a shell that every world here has."""
    said = bytearray()

    async def keep(data: bytes, _is_stderr: bool) -> None:
        said.extend(data)

    ended = await sandbox.client.exec(pb.ExecRequest(argv=["sh", "-c", command], timeout_seconds=120), keep)
    return ended.return_code, said.decode().strip()


async def call(sandbox: RemoteSandbox, server: str, tool: str, **arguments: object) -> str:
    """What a tool answers."""
    async with Client(sandbox.connect(server)) as client:
        result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    return content.text


async def test_a_world_of_one_static_program_is_enough(take: Take) -> None:
    sandbox = await take("bare")
    health = await sandbox.client.health()
    assert (list(health.mcp_servers), health.workdir) == (["filesystem"], "/workspace")
    _, root = await shell(sandbox, "ls / /lib /lib64 /usr /etc/ld.so.cache 2>/dev/null")
    assert not {"lib", "lib64", "usr", "/etc/ld.so.cache"} & set(root.split())
    await call(sandbox, "filesystem", "write_text_file", path="plan.txt", text="rent")
    assert (await shell(sandbox, "cat plan.txt"))[1] == "rent"
    assert (await shell(sandbox, "cat /data/2026.txt"))[1] == "rent 1200"
    assert (await shell(sandbox, "echo $PYTHONHOME"))[1] == "/nowhere"  # the world's own programs heed it


async def test_an_agent_has_no_rights_and_writes_where_it_may(take: Take, pods: SandboxPods) -> None:
    office, bare = await take("office"), await take("bare")
    users = [int((await shell(sandbox, "id -u"))[1]) for sandbox in (office, bare)]
    assert min(users) >= 100_000
    assert users[0] != users[1]
    assert (await shell(office, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | tr -d ' \\t\\n'"))[1] == (
        "CapEff:0000000000000000NoNewPrivs:1Seccomp:2"
    )
    assert [(await shell(sandbox, "id -un; echo ~agent"))[1] for sandbox in (office, bare)] == [
        "agent\n/home/agent"
    ] * 2
    assert (await shell(office, "ls /var/run/secrets"))[0] != 0
    for path in ("/anywhere", "/etc/passwd", "/opt/seatrial/bin/python3", "/var/tmp/x", "/run/x"):
        assert (await shell(office, f"echo x >> {path}"))[0] != 0, path
    for path in ("/workspace/budget/2026.txt", "/tmp/x", "/home/agent/x", "/logs/agent/x", "/solution/x"):
        assert (await shell(office, f"echo x >> {path}")) == (0, ""), path
    assert (await shell(office, "./run.sh; readlink latest"))[1] == "ran\nbudget/2026.txt"
    limited = "bash -c 'until [ $(ulimit -u) = 64 ]; do :; done; echo limited'"  # soon after it has begun
    assert (await shell(office, limited))[1] == "limited"
    pod = pods.namespace.get("pod", "office")
    assert pod["spec"]["runtimeClassName"] == "plain"
    assert pod["status"]["qosClass"] == "Burstable"
    assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]


async def test_output_is_streamed_while_the_command_runs(take: Take) -> None:
    sandbox = await take("office")
    told: list[bytes] = []

    async def answer(data: bytes, _is_stderr: bool) -> None:
        told.append(data)
        if data == b"waiting\n":  # it would for ever if this came when it has ended
            assert await shell(sandbox, "touch /tmp/go") == (0, "")

    command = "echo waiting; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo gone >&2"
    request = pb.ExecRequest(argv=["bash", "-c", command], timeout_seconds=120)
    ended = await sandbox.client.exec(request, answer)
    assert (ended.return_code, b"".join(told)) == (0, b"waiting\ngone\n")


async def test_a_command_out_of_time_takes_all_that_it_started_along(take: Take) -> None:
    sandbox = await take("office")
    command = "sleep 600 & setsid sleep 601 & (setsid env -i /bin/sleep 602 &); wait"
    with pytest.raises(CommandTimeoutError):
        await sandbox.exec(command, timeout_seconds=1)
    assert (await shell(sandbox, "cat /proc/[0-9]*/comm | grep sleep"))[1] == ""


async def test_files_go_in_and_out(take: Take, tmp_path: Path) -> None:
    sandbox = await take("office")
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/run.sh").write_text("echo ran")
    (tmp_path / "in/sub/run.sh").chmod(0o755)
    (tmp_path / "in/large").write_bytes(bytes(range(256)) * 40_000)
    await sandbox.upload(tmp_path / "in", "/workspace/up")
    assert (await shell(sandbox, "bash up/sub/run.sh; wc -c < up/large"))[1] == "ran\n10240000"
    await sandbox.download("/workspace/up", tmp_path / "out")
    assert (tmp_path / "out/large").read_bytes() == (tmp_path / "in/large").read_bytes()
    await sandbox.download("/workspace/up/sub/run.sh", tmp_path / "alone.sh")
    assert (tmp_path / "alone.sh").read_text() == "echo ran"


async def test_calls_without_the_right_token_are_refused(take: Take, pods: SandboxPods) -> None:
    await take("office")  # which is trial-1's from now on
    pod, other = pods.ready("office"), pods.ready("bare")
    wrong: dict[str, Tokens] = {
        "none": lambda _: "",
        "of another sandbox": other.token,
        "of another trial": pod.forged(trial="trial-2"),
        "expired": pod.forged(age=3600.0),
        "of another method": pod.forged(methods=[Method.EXEC]),
        "of another key": SandboxPod(
            pod.pod, pod.address, SandboxPods(pods.cluster, pods.namespace).signer, "trial-1"
        ).token,
        "of a phase to come": lambda _: pod.token(Phase.VERIFY),
    }
    for kind, tokens in wrong.items():
        assert await refuses(pod.address, tokens), f"a token {kind} was accepted"


async def refuses(address: str, tokens: Tokens) -> bool:
    """Whether a sandbox refuses to tell of itself."""
    client = SandboxdClient(address, tokens)
    try:
        await client.health()
    except SandboxAccessError:
        return True
    finally:
        await client.close()
    return False


async def test_a_trial_goes_on_in_another_sandbox_and_ends_in_verification(take: Take, tmp_path: Path) -> None:
    office, replacement = await take("office"), await take("replacement")
    assert (await shell(replacement, "cat /data/2026.txt"))[1] == "rent 1200"
    before = await office.client.snapshot(None)
    done = (
        "rm -f latest; echo key=AKIA$(printf 'A%.0s' $(seq 16)) > .env; cp /bin/true tool; mkdir -p kept; date > kept/a"
    )
    assert (await shell(office, done))[0] == 0
    archive = BytesIO()
    taken = await office.client.snapshot(archive)
    await replacement.client.restore([archive], taken.name)
    assert (await replacement.client.snapshot(None)).name == taken.name
    assert (await shell(replacement, "ls -A"))[1] == (await shell(office, "ls -A"))[1]

    await office.kill_all()
    changes, _ = await office.client.diff(pb.DiffRequest(snapshot=before.name))
    kinds = {change.path: change.kind for change in changes}
    assert kinds["/workspace/latest"] == pb.Change.KIND_REMOVED
    assert kinds["/workspace/kept/a"] == pb.Change.KIND_ADDED
    findings, _ = await office.client.audit(pb.AuditRequest(snapshot=before.name))
    found = {(finding.kind, finding.path) for finding in findings}
    assert (pb.Finding.KIND_EXECUTABLE, "/workspace/tool") in found
    assert (pb.Finding.KIND_SECRET, "/workspace/.env") in found

    left = "(setsid sleep 600 >/dev/null 2>&1 &); echo 1 > /tests/test.sh; echo 1 > /logs/verifier/reward.txt"
    await shell(replacement, left)
    frozen = await replacement.client.freeze()
    assert frozen.killed_processes >= 1
    assert {"/tests/test.sh"} <= set(frozen.removed_paths)
    assert (
        await shell(replacement, "cat /proc/[0-9]*/comm | grep sleep; ls -A /tests /logs/verifier | grep [a-z].txt")
    )[1] == ""
    (tmp_path / "test.sh").write_text("cat /workspace/kept/a >/dev/null && echo 1 > /logs/verifier/reward.txt")
    await replacement.upload(tmp_path, "/tests")
    assert (await shell(replacement, "sh /tests/test.sh; cat /logs/verifier/reward.txt"))[1] == "1"


@pytest.mark.parametrize(("world", "server"), [("sidecars", "notes"), ("gateway", "archipelago")])
async def test_servers_beside_a_world_work_on_its_files_until_verification(
    take: Take, pods: SandboxPods, world: str, server: str
) -> None:
    sandbox = await take(world)
    assert list((await sandbox.client.health()).mcp_servers) == [server]
    async with Client(sandbox.connect(server)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"add_note", "read_notes"}
    user = (await shell(sandbox, "id -u"))[1]
    assert await call(sandbox, server, "add_note", text="rent is due") == f"noted by {user}"
    assert (await shell(sandbox, "cat notes.txt; echo paid >> notes.txt"))[1] == "rent is due"
    assert await call(sandbox, server, "read_notes") == "rent is due\npaid\n"
    assert (await shell(sandbox, "grep -la [s]erver.py /proc/[0-9]*/cmdline"))[1] == ""  # out of the agent's reach

    await sandbox.kill_all()
    with pytest.raises(SandboxAccessError):
        async with sandbox.connect(server):
            pass
    assert (await shell(sandbox, "cat notes.txt"))[1] == "rent is due\npaid"
    statuses = pods.namespace.get("pod", world)["status"]["initContainerStatuses"]
    assert [one["state"].keys() for one in statuses if one["name"].startswith("mcp-")] == [{"running": 1}.keys()]


def test_a_sandbox_that_cannot_be_says_why(pods: SandboxPods) -> None:
    assert "the image has no such folder" in pods.failure("broken").message
    assert "waiting until http://127.0.0.1:8080/elsewhere/ lists its tools" in pods.failure("silent").message
