"""Harbor's own trials over sandboxes that are claimed and reached through their daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.environment.isolation import Means
from tests.sandbox_daemons import DaemonSource, means, no_isolation

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum:DeprecationWarning"),  # Harbor's own use
    pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation()),
]

ENVIRONMENT = "seatrial_rollout.environment.kubernetes:KubernetesEnvironment"
QUICKSTART = Path("examples/quickstart/tasks")
SERVERS = ["filesystem", "sheets", "code"]


@pytest.fixture
def quickstart() -> Path:
    tasks = sorted(path.parent for path in QUICKSTART.glob("**/task.toml"))
    if not tasks:
        pytest.skip("the quickstart's tasks are not generated")
    return tasks[0].resolve()


@pytest.fixture
def made() -> Iterator[list[DaemonSource]]:
    """The sources that trials made, to look at afterwards."""
    DaemonSource.made.clear()
    yield DaemonSource.made
    for source in DaemonSource.made:
        for daemon in source.daemons:
            daemon.stop()


async def run(task: Path, folder: Path, agent: str, servers: list[str]) -> TrialResult:
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=folder / "trials",
        agent=AgentConfig(name=agent),
        environment=EnvironmentConfig(
            import_path=ENVIRONMENT,
            kwargs={
                "source": "tests.sandbox_daemons:DaemonSource",
                "world": "office",
                "source_config": {"servers": servers},
            },
        ),
    )
    return await (await Trial.create(config)).run()


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1), ("nop", 0)])
async def test_a_quickstart_task_is_graded_in_a_claimed_sandbox(
    quickstart: Path, tmp_path: Path, made: list[DaemonSource], agent: str, reward: int
) -> None:
    result = await run(quickstart, tmp_path, agent, SERVERS)
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert result.verifier_result.rewards is not None
    assert result.verifier_result.rewards["reward"] == reward
    (source,) = made
    (daemon,) = source.daemons
    assert daemon.process.poll() is not None  # given back


async def test_a_task_that_needs_other_servers_than_its_world_has_is_told(
    quickstart: Path, tmp_path: Path, made: list[DaemonSource]
) -> None:
    result = await run(quickstart, tmp_path, "nop", [])
    assert result.exception_info is not None
    assert "do not have: none" in result.exception_info.exception_message
    assert made[0].daemons[0].process.poll() is not None


async def test_a_source_that_does_not_exist_is_told(quickstart: Path, tmp_path: Path) -> None:
    config = TrialConfig(
        task=TaskConfig(path=quickstart),
        trials_dir=tmp_path / "trials",
        agent=AgentConfig(name="nop"),
        environment=EnvironmentConfig(import_path=ENVIRONMENT, kwargs={"source": "nowhere:Source", "world": "w"}),
    )
    with pytest.raises(InvalidInputError, match="cannot be imported"):
        await Trial.create(config)
