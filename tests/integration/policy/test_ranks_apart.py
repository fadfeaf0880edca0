"""Ranks in pods that share no folder with the driver: theirs is hidden from them, and checkpoints go through S3."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from seatrial_api.spec.algorithm import LossSpec
from seatrial_rollout.environment.isolation import bwrap_path
from seatrial_rollout.object_store.remote_folder import RemoteFolder
from seatrial_trainer.policy.batch import Minibatch
from seatrial_trainer.policy.group import PolicyGroup
from seatrial_trainer.storage.run_storage import RunStorage
from tests.integration.policy.conftest import local_ray, make_sequences, make_setup
from tests.object_stores import KEYS, Bucket

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own sockets and logs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def cluster() -> Iterator[None]:
    with local_ray(2):
        yield


def python_with_a_folder_of_its_own(root: Path, script: Path) -> str:
    """A Python to which `root` is an empty folder that nobody else sees: that of another pod."""
    script.write_text(f'#!/bin/sh\nexec {bwrap_path()} --dev-bind / / --tmpfs {root} -- {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


async def test_a_rank_that_shares_no_folder_saves_and_loads_bit_by_bit(
    cluster: None, bucket: Bucket, model_path: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    storage = RunStorage.open(root, bucket.source()).taken_over()
    checkpoints = storage.stage("train").checkpoints
    python = python_with_a_folder_of_its_own(root, tmp_path / "python")
    options = {"num_cpus": 1, "runtime_env": {"py_executable": python, "env_vars": {**KEYS, "OMP_NUM_THREADS": "1"}}}

    files = RemoteFolder(root, bucket.source())
    group = await PolicyGroup.start(make_setup(), model_path, actor_options=options, files=files)
    (seen,) = ray.get([rank.__ray_call__.remote(lambda _self: list(root.iterdir())) for rank in group.ranks])
    assert seen == [], "the rank does not see the driver's folder"
    minibatch = Minibatch(make_sequences(), LossSpec())
    await group.train_minibatch(minibatch, 1e-2)
    with checkpoints.writing(1, {}) as folder:
        await (await group.hold(folder / "policy", folder / "model"))()
    checkpoint = checkpoints.open(1)
    assert {path.name for path in checkpoint.policy.iterdir()} == {"policy.safetensors", "rng-0.safetensors"}
    assert (checkpoint.model / "config.json").exists()
    await asyncio.to_thread(checkpoints.settle)
    assert not [key for key in bucket.stored_keys() if "/." in key], "nothing is left of the way it took"
    expected = await group.train_minibatch(minibatch, 1e-2)
    await group.load(checkpoint.policy)
    found = await group.train_minibatch(minibatch, 1e-2)
    group.stop()
    assert (found[0].loss, found[1].grad_norm) == (expected[0].loss, expected[1].grad_norm)
