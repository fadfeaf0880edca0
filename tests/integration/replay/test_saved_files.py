"""Files that are kept outside of a sandbox and given to another one, by every provider."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from seatrial_rollout.environment.interface import Sandbox
from seatrial_rollout.environment.isolation import Isolation, Means
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_rollout.environment.saved_files import SavedFiles
from seatrial_sandbox.errors import SandboxStateError
from tests.sandbox_daemons import DaemonSource, means, no_isolation

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())

type Start = Callable[[], Awaitable[Sandbox]]

LOOK = (
    "cd /; find workspace home/agent tmp -printf '%p %y %m %l %u\\n' | sort;"
    " find workspace home/agent tmp -type f -exec sha256sum {} + | sort"
)
"""Everything about every file but its time."""


@pytest.fixture(params=["local", "plain", "sandboxd"])
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts sandboxes of one provider, all with the same world."""
    world = tmp_path / "world"
    (world / "deep").mkdir(parents=True)
    (world / "notes.txt").write_text("Nothing to see here.\n")
    (world / "deep/bulk").write_bytes(bytes(300_000))
    folders = iter(range(10))
    async with AsyncExitStack() as stack:

        async def start_one() -> Sandbox:
            sandbox: Sandbox
            if request.param == "sandboxd":
                sandbox = await RemoteSandbox.claim(DaemonSource(), "world", "trial")
            else:
                isolation = Isolation.PLAIN if request.param == "plain" else Isolation.BUBBLEWRAP
                sandbox = await LocalSandbox.start(tmp_path / f"sandbox-{next(folders)}", isolation=isolation)
            stack.push_async_callback(sandbox.stop)
            await sandbox.upload(world, "/workspace")
            return sandbox

        yield start_one


async def done(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command, timeout_seconds=60)
    assert result.return_code == 0, result.stderr
    return result.stdout


async def test_another_sandbox_begins_with_all_that_was_saved_and_nothing_else(start: Start, tmp_path: Path) -> None:
    saved, first = SavedFiles(), await start()
    await saved.begin(first)
    await done(first, "mv notes.txt moved; mv deep deeper; echo 1 > new; ln -s new link")
    await done(first, "mkdir locked; chmod 500 locked")
    await saved.save(first, tmp_path)
    await done(first, "echo 2 >> new; chmod 751 new; rm link; rm -rf deeper; echo 3 > $HOME/x; echo 4 > /tmp/y")
    await saved.save(first, tmp_path)
    await done(first, "echo lost > lost")
    await saved.save(first, tmp_path)
    await done(first, "rm lost")
    await saved.save(first, tmp_path)
    await saved.save(first, tmp_path)  # nothing has changed, so nothing is kept
    assert len(saved.archives) == 4
    second = await start()
    await done(second, "echo here already > stranger")
    await saved.begin(second)
    assert await second.snapshot(None) == saved.snapshot
    if getattr(first, "means", None) is not Means.PLAIN:  # where paths of the host are told apart
        assert await done(second, LOOK) == await done(first, LOOK)
    assert await done(second, "cat moved new") == "Nothing to see here.\n1\n2\n"
    await done(second, "echo 5 >> new; rm -d locked")
    await saved.save(second, tmp_path)  # and so on, in whatever sandbox
    third = await start()
    await saved.begin(third)
    assert await done(third, "cat new; ls") == "1\n2\n5\nmoved\nnew\n"
    saved.close()


async def test_what_is_saved_is_what_changed(start: Start, tmp_path: Path) -> None:
    saved, sandbox = SavedFiles(), await start()
    await saved.begin(sandbox)
    await done(sandbox, "echo 1 > new; cp deep/bulk copy")
    await saved.save(sandbox, tmp_path)
    await done(sandbox, "head -c 200000 /dev/urandom > large")
    await saved.save(sandbox, tmp_path)
    await done(sandbox, "cp large again")
    await saved.save(sandbox, tmp_path)
    small, large, copied = (archive.seek(0, 2) for archive in saved.archives)
    assert small < 10_000
    assert 200_000 < large < 210_000
    assert copied < 10_000
    saved.close()


async def test_a_base_that_is_not_known_is_told(start: Start) -> None:
    with pytest.raises(SandboxStateError):
        await (await start()).snapshot(None, "f" * 64)


async def test_what_an_agent_leaves_running_is_counted(start: Start) -> None:
    sandbox = await start()
    before = await sandbox.num_processes()
    await done(sandbox, "true")
    assert await sandbox.num_processes() == before
    await done(sandbox, "setsid sleep 600 >/dev/null 2>&1 </dev/null &")
    assert await sandbox.num_processes() > before
