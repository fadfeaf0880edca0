"""Trials whose sandboxes are killed under them: deterministic agents, real sandboxes, and who kills when."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.rollout import ReplaySpec, SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.harness.setting import current_setting
from seatrial_rollout.trials.runner import run_trial
from tests.engine_server import engine_server, tool_call
from tests.leftovers import eventually, processes_using
from tests.sandbox_daemons import Daemon
from tests.trial_tasks import make_request

LOCAL = "local"
SANDBOXD = "harbor:seatrial_rollout.environment.kubernetes:KubernetesEnvironment"
SERVERS = ("filesystem", "sheets", "code")
_PATIENCE_SECONDS = 120.0

type Agent = Callable[[int], str]
"""From the number of a turn to what the policy says in it."""


def deterministic_agent(program: int, num_calls: int) -> Agent:
    """One that always does the same: changes that must not happen twice, looks, and in the end a look at everything."""

    def speak(turn: int) -> str:
        if turn == num_calls:
            return "Done."
        if turn == num_calls - 1:
            every_file = "find . $HOME -type f -printf '%p %m ' -exec sha256sum {} ';' | sort"
            return tool_call("code_code_exec", code=f"{every_file}; find . -type l -printf '%p %l\\n'; ls -A $HOME")
        draw = random.Random(f"{program}/{turn}")  # noqa: S311  no secret
        name = f"{draw.choice('abc')}.txt"
        return draw.choice(
            [
                tool_call("code_code_exec", code=f"echo {turn} >> {name}; wc -l *.txt"),
                tool_call("code_code_exec", code=f"echo {turn} >> slow; sleep 0.2; echo {turn} >> slow; wc -l slow"),
                tool_call("code_code_exec", code=f"mv notes.txt {name}.old; mkdir -p d; ln -sf ../{name} d/link"),
                tool_call("code_code_exec", code="mv d e; rm e/link; echo > $HOME/kept; chmod 600 *.txt; ls -A $HOME"),
                tool_call("filesystem_write_text_file", path=name, text=f"written in turn {turn}\n"),
                tool_call("filesystem_read_text_file", path=name),
                tool_call("filesystem_list_files"),
                tool_call("sheets_append_row", path="prices.csv", values=["lamp", str(turn)]),
                tool_call("sheets_aggregate", path="prices.csv", column="price", function="sum"),
            ]
        )

    return speak


@dataclass(frozen=True, slots=True)
class Kill:
    """The end of a trial's sandbox."""

    turn: int
    """Turn of the policy in which it comes."""
    delay_seconds: float = 0.0
    """Time after the turn, in the middle of its call or behind it; 0 is before."""
    after_file: str = ""
    """Name of a file in the sandbox that must be there, if any."""


@dataclass(frozen=True, slots=True)
class DaemonsOfTrial:
    """Gives a trial its sandboxes: a `SandboxSource` that remembers them."""

    daemons: list[Daemon] = field(default_factory=list)
    """The newest last."""
    by_trial: ClassVar[dict[str, "DaemonsOfTrial"]] = {}

    async def claim(self, world: str, trial_id: str) -> Daemon:  # noqa: ARG002  all worlds are the same here
        """Start a daemon."""
        daemon = await asyncio.to_thread(Daemon.start, SERVERS, trial=trial_id)
        self.daemons.append(daemon)
        return daemon

    async def release(self, sandbox: Daemon) -> None:
        """End it."""
        await asyncio.to_thread(sandbox.stop)


def daemons_of_trial() -> DaemonsOfTrial:
    """A source for the trial that is being put together."""
    source = DaemonsOfTrial()
    DaemonsOfTrial.by_trial[current_setting().request.trial_id] = source
    return source


@dataclass(slots=True)
class Storm:
    """Runs trials in one process, and kills their sandboxes."""

    provider: str
    policy: Path
    task: Path
    replay: ReplaySpec
    at_once: int = 8
    """Trials in flight."""
    notebook: bool = False
    """Whether the agents have one."""
    _folders: dict[str, Path] = field(default_factory=dict, init=False)

    async def run(
        self, agents: Mapping[str, Agent], kills: Mapping[str, Sequence[Kill]] | None = None
    ) -> dict[str, Trajectory]:
        """Run a trial for each agent, by name, to its end.

        Args:
            agents: The agents by trial.
            kills: Ends of sandboxes by trial.
        """
        places = asyncio.Semaphore(self.at_once)
        killers = asyncio.TaskGroup()

        async def speak(trial: str, turn: int) -> str:
            for kill in (kills or {}).get(trial, ()):
                if kill.turn == turn and (kill.delay_seconds or kill.after_file):
                    killers.create_task(self._kill_later(trial, kill))
                elif kill.turn == turn:
                    await self._kill(trial)
            return agents[trial](turn)

        async def run(trial: str, engine: EngineAddress) -> Trajectory:
            async with places:
                return await self._run(trial, engine)

        async with engine_server(self.policy, speak) as engine, killers, asyncio.TaskGroup() as trials:
            running = {trial: trials.create_task(run(trial, engine.address)) for trial in agents}
        return {trial: task.result() for trial, task in running.items()}

    async def _kill(self, trial: str) -> None:
        """End a trial's sandbox as the failure of a node would: at once, and with nobody told."""
        if self.provider == SANDBOXD:
            DaemonsOfTrial.by_trial[trial].daemons[-1].kill()
            return
        folder = self._folders[trial]
        for pid in processes_using(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not processes_using(folder), what="a sandbox to be gone", seconds=_PATIENCE_SECONDS)

    async def _kill_later(self, trial: str, kill: Kill) -> None:
        if kill.after_file:
            source = DaemonsOfTrial.by_trial.get(trial)
            folder = self._folders[trial] if source is None else source.daemons[-1].folder
            found, what = lambda: list(folder.rglob(kill.after_file)), f"{kill.after_file} to be made"
            await eventually(found, what=what, seconds=_PATIENCE_SECONDS)
        await SYSTEM_CLOCK.sleep(kill.delay_seconds)
        if trial in self._folders:
            await self._kill(trial)

    async def _run(self, trial: str, engine: EngineAddress) -> Trajectory:
        request = make_request(self.task, trial_id=trial, model_path=self.policy, engines=[engine])
        harness = request.harness.model_copy(update={"notebook": self.notebook})
        config = {} if self.provider == LOCAL else {"source": f"{__name__}:daemons_of_trial", "world": "office"}
        sandbox = SandboxSpec(provider=self.provider, config=config, replay=self.replay)
        self._folders[trial] = folder = Path(tempfile.mkdtemp(prefix="storm-"))
        try:
            return await run_trial(replace(request, harness=harness, sandbox=sandbox, max_steps=50), folder)
        finally:
            del self._folders[trial]
            shutil.rmtree(folder, ignore_errors=True)
            for daemon in DaemonsOfTrial.by_trial.pop(trial, DaemonsOfTrial()).daemons:
                daemon.stop()
