"""Agents that others wrote, unchanged, in our sandboxes: whatever they do to a conversation, its tokens are exact.

The policy is a script, since no model this small could drive them.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from seatrial_api.outcome import Outcome
from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.environment.isolation import HARNESSES_VARIABLE, Means
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_trainer.policy.minibatch import build_minibatches
from tests.engine_server import WEIGHT_VERSION, EngineServer, engine_server, tool_call
from tests.sandbox_daemons import means, no_isolation
from tests.stand_in_broker import daemons, stand_in_broker
from tests.trajectories import make_trajectory
from tests.trial_hosts import trial_host
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOLDER = Path(os.environ.get(HARNESSES_VARIABLE) or Path(__file__).parents[3] / ".cache" / "harnesses")
CONTEXT = 200_000
"""Claude Code's tools alone are 60,000 tokens of this model, whose tokenizer is a poor one."""
MAX_TURN = 24_000
TOKEN = "service-account-token"  # noqa: S105  a stand-in's
BROKEN = "<tool_call>\n{broken\n</tool_call>"
FAIL = "an engine's fault"
"""In a script: the engine answers once with an error, and the client asks again."""
UPDATE = "new weights"
"""In a script: they come in the middle of the turn that follows."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents_host(config: HostConfig, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TrialHost]:
    """A host whose sandboxes see the agents' programs, those that it claims from a broker too."""
    async with stand_in_broker(daemons(), TOKEN) as broker:
        with broker.told(tmp_path_factory.mktemp("token")), pytest.MonkeyPatch.context() as patch:
            patch.setenv(HARNESSES_VARIABLE, str(FOLDER))
            async with trial_host(config) as host:
                await host.start()
                yield host


def needs(program: str, *, is_ours: bool = True) -> pytest.MarkDecorator:
    """Skip where a program is missing, and name it."""
    is_there = (FOLDER / "bin" / program).exists() if is_ours else shutil.which(program) is not None
    how = f"python hack/install_harnesses.py {FOLDER}" if is_ours else "the system's packages"
    return pytest.mark.skipif(not is_there, reason=f"{program} is not installed; it comes with {how}")


LOCAL = SandboxSpec(provider="local")
IN_POD = SandboxSpec(provider="kubernetes", world="office")
needs_pods = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())


def typed(*keys: str, is_done: bool = False) -> str:
    """A turn of terminus-2."""
    commands = [{"keystrokes": f"{line}\n", "duration": 0.5} for line in keys]
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": is_done})


@dataclass
class Play:
    """A script that is followed whatever turn the agent believes to be at."""

    lines: Iterator[str]
    engine: EngineServer | None = None

    async def say(self, _: str, __: int) -> str:
        """The next line."""
        line = next(self.lines)
        if line == UPDATE and self.engine is not None:
            self.engine.weight_version += 1
            line = next(self.lines)
        if line == FAIL:
            raise web.HTTPUnprocessableEntity
        return line


async def tried(
    host: TrialHost,
    policy: Path,
    folder: Path,
    harness: str,
    lines: Iterable[str],
    sandbox: SandboxSpec = LOCAL,
    *,
    sums_up_at: int | None = None,
) -> Trajectory:
    """A solved trial by a harness, token-exact under the weights of two versions, each of its tokens trained once."""
    task = write_trial_task(folder / "task", servers=())
    play = Play(iter(lines))
    async with engine_server(policy, play.say) as play.engine:
        request = make_request(task, model_path=policy, engines=[play.engine.address], max_turn_tokens=MAX_TURN)
        agent = request.harness.model_copy(update={"name": harness, "compaction": sums_up_at is not None})
        model = Policy(policy, CONTEXT if sums_up_at is None else sums_up_at + MAX_TURN, "hermes")
        trajectory = await host.run(replace(request, harness=agent, policy=model, sandbox=sandbox))
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert list(play.lines) == []
    assert verify(trajectory, ChatTemplate.load(policy)) == []
    assert versions_of(trajectory) == sorted(versions_of(trajectory))
    assert set(versions_of(trajectory)) == {WEIGHT_VERSION, play.engine.weight_version}
    assert trained(trajectory) == Counter(sampled(trajectory))
    return trajectory


def versions_of(trajectory: Trajectory) -> list[int]:
    """The versions that sampled its tokens, turn by turn."""
    sequences = trajectory.sequences
    spans = ((sequences[turn.sequence].weight_versions, turn) for turn in trajectory.turns)
    return [version for versions, turn in spans for version in versions[turn.start : turn.stop]]


def sampled(trajectory: Trajectory) -> Iterator[tuple[int, int, int, float]]:
    """Sequence, place, id and log-probability of each token that some turn sampled."""
    for turn in trajectory.turns:
        sequence = trajectory.sequences[turn.sequence]
        for place in range(turn.start, turn.stop):
            yield turn.sequence, place, sequence.token_ids[place], sequence.logprobs[place]


def trained(trajectory: Trajectory) -> Counter[tuple[int, int, int, float]]:
    """The same of each token that an optimiser step trains; a trial that failed makes up the rest of its group."""
    failed = make_trajectory(trajectory.trial_id + "-b", reward=0.0)
    (minibatch,) = build_minibatches([[trajectory, failed]], AlgorithmSpec(), [])
    *of_trajectory, _ = minibatch.sequences
    return Counter(
        (number, place, token, sequence.logprobs[place])
        for number, sequence in enumerate(of_trajectory)
        for place, token in enumerate(sequence.token_ids)
        if sequence.loss_mask[place]
    )


@needs("tmux", is_ours=False)
async def test_terminus_2(agents_host: TrialHost, policy: Path, tmp_path: Path) -> None:
    lines = [
        typed("ls"),
        FAIL,
        "no JSON",
        UPDATE,
        typed("echo 42 > answer.txt"),
        typed(is_done=True),
        typed(is_done=True),
    ]
    trajectory = await tried(agents_host, policy, tmp_path, "terminus-2", lines)
    assert [sequence.parent for sequence in trajectory.sequences] == [None]
    assert len(trajectory.turns) == 5
    assert trajectory.findings == []


@needs_pods
@needs("mini-swe-agent")
async def test_mini_swe_agent_drops_turns_and_each_stays_in_the_log(
    agents_host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    write = tool_call("bash", command="echo 42 > answer.txt")
    submit = tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    lines = [tool_call("bash", command="ls"), FAIL, UPDATE, "no call", BROKEN, write, submit]
    trajectory = await tried(agents_host, policy, tmp_path, "mini-swe-agent", lines, IN_POD)
    assert [sequence.parent for sequence in trajectory.sequences] == [None, 0, 0]
    assert [turn.sequence for turn in trajectory.turns] == [0, 0, 1, 2, 2]
    listed = trajectory.turns[0].tool_calls[0]
    assert listed.tool == "bash"
    assert "notes.txt" in listed.result


@needs("codex")
async def test_codex(agents_host: TrialHost, policy: Path, tmp_path: Path) -> None:
    write = tool_call("exec_command", cmd="echo 42 > answer.txt")
    lines = [tool_call("exec_command", cmd="ls"), FAIL, UPDATE, write, BROKEN]
    trajectory = await tried(agents_host, policy, tmp_path, "codex", lines)
    assert [sequence.parent for sequence in trajectory.sequences] == [None]
    listed, written = (call for turn in trajectory.turns for call in turn.tool_calls)
    assert "notes.txt" in listed.result
    assert written.arguments == '{"cmd": "echo 42 > answer.txt"}'
    assert trajectory.turns[2].text.startswith(BROKEN)


@needs("claude")
async def test_claude_code(agents_host: TrialHost, policy: Path, tmp_path: Path) -> None:
    look = tool_call("Bash", command="ls", description="Look around")
    write = tool_call("Bash", command="echo 42 > answer.txt", description="Write")
    trajectory = await tried(agents_host, policy, tmp_path, "claude-code", [look, FAIL, UPDATE, write, BROKEN])
    assert [sequence.parent for sequence in trajectory.sequences] == [None]
    listed, _ = (call for turn in trajectory.turns for call in turn.tool_calls)
    assert listed.result == "notes.txt"


@needs_pods
@needs("opencode")
async def test_opencode_sums_up_a_long_conversation_and_goes_on_after_an_agent_that_it_hands_work_to(
    agents_host: TrialHost, policy: Path, tmp_path: Path
) -> None:
    hand_over = tool_call("task", description="Look", prompt="What files are there?", subagent_type="general")
    look = tool_call("bash", command="ls", description="Look around")
    write = tool_call("bash", command="echo 42 > answer.txt", description="Write")
    at_length = f"{'0' * 20_000}\n{look}"  # its own prompt is 23,000 tokens
    lines = [hand_over, look, "There is notes.txt.", FAIL, UPDATE, at_length, "42 is to be written.", write, BROKEN]
    trajectory = await tried(agents_host, policy, tmp_path, "opencode", lines, IN_POD, sums_up_at=40_000)
    assert [sequence.parent for sequence in trajectory.sequences] == [None, 0, 0, 2]
    assert [turn.sequence for turn in trajectory.turns] == [0, 1, 1, 0, 2, 3, 3]
    assert "There is notes.txt." in trajectory.turns[0].tool_calls[0].result
    assert trajectory.sequences[3].loss_mask[0] == 0
