"""One policy, one host and one scripted engine for all trials of a module."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from tests.chat_models import FAMILIES, write_model
from tests.leftovers import eventually, mounts_in, processes_using
from tests.trial_hosts import trial_host

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(FAMILIES["hermes"], tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def config(policy: Path) -> HostConfig:
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return HostConfig(model_path=policy, env={"PYTHONPATH": path}, grace_seconds=3.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(config: HostConfig) -> AsyncIterator[TrialHost]:
    async with trial_host(config) as host:
        await host.start()
        yield host
    await eventually(lambda: not processes_using(host.root), what="the processes of a stopped host to end")
    assert not host.root.exists()
    assert not mounts_in(host.root)
