"""Harbor's own trials, agents and verifier over our sandboxes."""

from pathlib import Path
from typing import Any, override

import pytest
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from seatrial_api.errors import SeatrialError
from seatrial_rollout.environment.isolation import Isolation
from seatrial_rollout.environment.local import LocalEnvironment
from tests.integration.sandbox.conftest import outcome

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum:DeprecationWarning")  # Harbor's own use

ENVIRONMENT = "seatrial_rollout.environment.local:LocalEnvironment"
TASK = """\
schema_version = "1.4"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
workdir = "/workspace"
"""
NO_NETWORK = 'network_mode = "no-network"\n'
SERVER = """\
[[environment.mcp_servers]]
name = "{0}"
transport = "stdio"
command = "seatrial-mcp"
args = ["{0}"]
"""
TEST = """\
#!/bin/bash
reward=0
[ "$(cat /workspace/answer.txt)" = 42 ] && reward=1
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "answer"
    files = {
        "instruction.md": "Write 42 into answer.txt.\n",
        "task.toml": TASK + "".join(SERVER.format(name) for name in ("filesystem", "sheets", "code")),
        "environment/files/question.txt": "What is the answer?\n",
        "solution/solve.sh": "#!/bin/bash\necho 42 > /workspace/answer.txt\necho >> /workspace/question.txt\n",
        "tests/test.sh": TEST,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def run(task: Path, agent: AgentConfig, isolation: Isolation = Isolation.BUBBLEWRAP) -> TrialResult:
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=task.parent / "trials",
        agent=agent,
        environment=EnvironmentConfig(import_path=ENVIRONMENT, kwargs={"isolation": isolation}),
    )
    result = await (await Trial.create(config)).run()
    if result.exception_info and "no sandbox can be started" in result.exception_info.exception_message:
        pytest.skip(result.exception_info.exception_message)
    return result


async def complaint(task: Path) -> str:
    """Why a trial fails: Harbor raises while it builds a trial, later it reports."""
    try:
        result = await run(task, AgentConfig(name="nop"))
    except SeatrialError as error:
        return str(error)
    assert result.exception_info is not None
    return result.exception_info.exception_message


def rewards(result: TrialResult) -> dict[str, float] | None:
    assert result.exception_info is None, result.exception_info
    return result.verifier_result and result.verifier_result.rewards


@pytest.mark.parametrize("isolation", [Isolation.BUBBLEWRAP, Isolation.PLAIN])
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1), ("nop", 0)])
async def test_the_oracle_scores_one_and_nobody_scores_zero(
    task: Path, agent: str, reward: int, isolation: Isolation
) -> None:
    assert rewards(await run(task, AgentConfig(name=agent), isolation)) == {"reward": reward}


async def test_a_trial_leaves_the_task_untouched_and_no_sandbox_behind(task: Path) -> None:
    await run(task, AgentConfig(name="oracle"))
    assert (task / "environment/files/question.txt").read_text() == "What is the answer?\n"
    assert list((task.parent / "trials").rglob("sandbox*")) == []


class _Agent(BaseAgent):
    """An agent that does what its subclass says."""

    capabilities = AgentCapabilities(mcp_servers=True)

    @staticmethod
    @override
    def name() -> str:
        return "test"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: Any) -> None:
        pass


class ToolUser(_Agent):
    """Solves the task through MCP."""

    @override
    async def run(self, instruction: str, environment: LocalEnvironment, context: Any) -> None:
        from mcp import Client  # noqa: PLC0415

        async with Client(environment.connect("filesystem")) as client:
            read = await client.call_tool("read_text_file", {"path": "question.txt"})
            assert outcome(read) == (False, "What is the answer?\n")
            await client.call_tool("write_text_file", {"path": "answer.txt", "text": "42"})


class Cheat(_Agent):
    """Solves nothing, but tries to write its own reward in every way it can think of."""

    @override
    async def run(self, instruction: str, environment: LocalEnvironment, context: Any) -> None:
        await environment.exec(
            "mkdir -p /tests /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json;"
            "ln -s /workspace /logs/verifier; ln -s /workspace /logs/agent/verifier;"
            "mkdir -p ~/bin; printf '#!/bin/sh\\necho 42\\n' > ~/bin/cat; chmod +x ~/bin/cat; export PATH=~/bin:$PATH;"
            "echo 'cat() { echo 42; }' | tee ~/.bashrc ~/.profile ~/.bash_profile > .bashrc;"
            "(setsid bash -c 'while :; do echo 42 > /workspace/answer.txt; echo 1 > /logs/verifier/reward.txt;"
            " sed -i s/reward=0/reward=1/ /tests/test.sh; rm -f /workspace/answer.txt; done' >/dev/null 2>&1 &)"
            "until [ -e /workspace/answer.txt ]; do :; done; rm -f /workspace/answer.txt"
        )


async def test_an_agent_reaches_the_tasks_mcp_servers(task: Path) -> None:
    agent = AgentConfig(import_path=f"{__name__}:ToolUser")
    assert rewards(await run(task, agent)) == {"reward": 1}


async def test_an_agent_cannot_write_its_own_reward(task: Path) -> None:
    (task / "tests/test.sh").write_text(
        TEST.replace("reward=0\n", "reward=0\nrm -f /workspace/answer.txt; sleep 0.2\n")
    )
    agent = AgentConfig(import_path=f"{__name__}:Cheat")
    assert rewards(await run(task, agent)) == {"reward": 0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("environment/Dockerfile", "FROM scratch\n"), "container image"),
        (("task.toml", TASK + '[[environment.mcp_servers]]\nname = "x"\nurl = "http://x"\n'), "no network"),
        (("task.toml", TASK.replace('"/workspace"', '"/etc"')), "workdir"),
    ],
    ids=["a container image", "a server on the network", "a reserved workdir"],
)
async def test_what_a_local_sandbox_cannot_do_is_refused_with_a_sentence(
    task: Path, change: tuple[str, str], reason: str
) -> None:
    (task / change[0]).write_text(change[1])
    assert reason in await complaint(task)
    assert not list((task.parent / "trials").rglob("verifier/reward*"))


async def test_a_task_without_network_runs_where_that_is_enforced(task: Path) -> None:
    (task / "task.toml").write_text(TASK + NO_NETWORK)
    assert rewards(await run(task, AgentConfig(name="oracle"))) == {"reward": 1}
    with pytest.raises(ValueError, match="no-network"):
        await run(task, AgentConfig(name="oracle"), Isolation.PLAIN)


async def test_a_verifier_that_writes_nonsense_gives_no_reward(task: Path) -> None:
    (task / "tests/test.sh").write_text("#!/bin/bash\necho garbage > /logs/verifier/reward.json\n")
    result = await run(task, AgentConfig(name="nop"))
    assert result.verifier_result is None
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "VerifierOutputParseError"
