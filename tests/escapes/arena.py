"""One sandbox that attacks, one beside it, and all attempts of a place made in a row."""

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial_rollout.environment.interface import Sandbox
from seatrial_sandbox.errors import SandboxError
from tests.escapes.attempt import Attempt, Category, Place
from tests.escapes.neighbours import SHARED_KEY
from tests.escapes.reward import CHECK, TEST

HEALTHY = "mine\nalive\n"
"""What a neighbour says that nobody has harmed."""
_SECONDS = 60
_SHARE = (
    f"import ctypes; ctypes.CDLL(None).shmget({SHARED_KEY}, 4096, 0o1666)\n"
    "for path in ('/dev/shm/neighbour', '/tmp/neighbour'): open(path, 'w').write('mine')\n"
)
_SETTLE = "echo mine > /workspace/secret; sleep 900 >/dev/null 2>&1 & echo $! > /workspace/pid"
_HEALTH = "cat /workspace/secret; kill -0 $(cat /workspace/pid) && (echo alive)"


@dataclass(slots=True)
class Arena:
    """Where attempts are made."""

    place: Place
    attacker: Sandbox
    neighbour: Sandbox
    folder: Path
    """Empty folder on this machine."""
    facts: dict[str, Any]
    """What the scripts know."""
    findings: Callable[[], Awaitable[Sequence[str]]]
    """What the audit of the attacker's sandbox says, as `kind path detail`."""
    outside_folders: Sequence[Path] = ()
    """Folders of this machine that nothing may be put into."""
    python: str = "python3"
    """Interpreter in the sandboxes."""

    @property
    def verdict(self) -> Path:
        """Folder with what the verifier wrote."""
        return self.folder / "verdict"


@dataclass(slots=True)
class Played:
    """What became of one attempt."""

    said: str = ""
    neighbour: str = ""


@dataclass(slots=True)
class Match:
    """What became of all."""

    attempts: dict[str, Played] = field(default_factory=dict)
    found_before_tests: str = ""
    """What lay where the verifier's files are, in its phase before they came."""
    findings: Sequence[str] = ()

    def check(self, attempt: Attempt) -> None:
        """Hold an attempt to what is expected of it.

        Raises:
            AssertionError: If it got through, failed for another reason, harmed the neighbour, or left no trace.
        """
        played = self.attempts[attempt.name]
        lines = played.said.splitlines()
        expected = re.compile(rf"refused: ({attempt.refusal})")
        assert lines, "it said nothing"
        assert all(expected.fullmatch(line) for line in lines), f"wanted {expected.pattern!r}:\n{played.said}"
        assert played.neighbour == HEALTHY
        if attempt.recorded:
            found = [line for line in self.findings if re.match(attempt.recorded, line)]
            assert found, f"the audit does not tell {attempt.recorded!r}:\n" + "\n".join(self.findings)


async def play(arena: Arena, attempts: Sequence[Attempt]) -> Match:
    """Make all attempts, verify once, and look at what is left."""
    match = Match()
    await _settle(arena)
    for attempt in attempts:
        played = match.attempts[attempt.name] = Played()
        await _say(played, _run(arena, attempt.script))
        if attempt.act is not None:
            await _say(played, attempt.act(arena))
        played.neighbour = (await arena.neighbour.exec(_HEALTH, timeout_seconds=_SECONDS)).stdout
        if attempt.category is Category.EXHAUSTION:
            await arena.attacker.exec("kill -9 -1")
    await arena.attacker.kill_all()
    match.found_before_tests = (await arena.attacker.exec("find /tests/ /logs/verifier/ ~/ -mindepth 1")).stdout
    await _verify(arena)
    for attempt in attempts:
        played = match.attempts[attempt.name]
        await _say(played, _run(arena, attempt.aftermath))
        if attempt.judged is not None:
            await _say(played, attempt.judged(arena))
    match.findings = await arena.findings()
    return match


async def _settle(arena: Arena) -> None:
    facts = arena.folder / "facts.json"
    facts.write_text(json.dumps(arena.facts))
    for source, name in ((facts, "facts.json"), (Path(__file__).with_name("kit.py"), "kit.py")):
        await arena.attacker.upload(source, f"/solution/{name}")
    await arena.neighbour.exec(_SETTLE)
    if arena.place is not Place.PLAIN:  # which has no shared memory of its own
        done = await arena.neighbour.exec(f"{arena.python} -c {shlex.quote(_SHARE)}")
        if done.return_code != 0:
            raise SandboxError(f"the neighbour does not settle: {done.stderr}")


async def _run(arena: Arena, script: str) -> str:
    """Run a script of an attempt's and return all that it says."""
    if not script:
        return ""
    begin = "facts_file = '/solution/facts.json'\nexec(open('/solution/kit.py').read())\n"
    done = await arena.attacker.exec(
        f"{arena.python} -I -c {shlex.quote(begin + script)}", timeout_seconds=_SECONDS, env={"PYTHON": arena.python}
    )
    return done.stdout + done.stderr


async def _say(played: Played, telling: Awaitable[str]) -> None:
    """Add what was said, or what went wrong, which is no refusal."""
    try:
        said = await telling
    except (SandboxError, OSError) as exc:
        said = f"{type(exc).__name__}: {exc}"
    played.said += said if not said or said.endswith("\n") else f"{said}\n"


async def _verify(arena: Arena) -> None:
    """As the verifier does it: bring the tests, run them, fetch the verdict."""
    tests = arena.folder / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text(TEST)
    (tests / "check.py").write_text(CHECK)
    await arena.attacker.upload(tests, "/tests")
    command = "chmod +x /tests/test.sh; /tests/test.sh"
    await arena.attacker.exec(command, env={"PYTHON": arena.python}, timeout_seconds=_SECONDS)
    await arena.attacker.exec("sleep 0.6")  # in which what outlived the tests would change their verdict
    await arena.attacker.download("/logs/verifier", arena.verdict)
