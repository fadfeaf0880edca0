import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, override

import pytest
import ray
from safetensors.torch import load_file
from torch import Tensor

from seatrial_api.clock import Deadline
from seatrial_api.errors import CorruptionError, InvalidInputError, WaitTimeoutError
from seatrial_api.spec.algorithm import LossSpec
from seatrial_rollout.engine.gloo import GlooGroup
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder
from seatrial_trainer.policy.batch import Minibatch
from seatrial_trainer.policy.errors import PolicyRankLostError
from seatrial_trainer.policy.gang import Gang
from seatrial_trainer.policy.group import PolicyGroup
from seatrial_trainer.policy.torch_backend import TorchBackend
from seatrial_trainer.weight_sync.remote_sender import RemoteSender, SendError
from seatrial_trainer.weight_sync.sender import WeightSender
from tests.integration.policy.conftest import local_ray, make_sequences, make_setup
from tests.weight_receiver import receive

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own sockets and logs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MINIBATCH = Minibatch(make_sequences(), LossSpec())


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_ray(4):
        yield


def process_of(group: PolicyGroup, rank: int) -> int:
    return int(ray.get(group.ranks[rank].__ray_call__.remote(lambda _self: os.getpid())))


@pytest.fixture(scope="module")
def group(cluster: None, model_path: Path) -> Iterator[PolicyGroup]:
    """Two ranks for all tests of this file, for starting them takes longer than everything else."""
    setup = make_setup(ranks=2, max_tokens_per_microbatch=32)
    started = asyncio.run(PolicyGroup.start(setup, model_path, timeout_seconds=120))
    yield started
    started.stop()


async def test_two_ranks_train_as_one(group: PolicyGroup, model_path: Path, tmp_path: Path) -> None:
    await (await group.hold(tmp_path, tmp_path / "model"))()
    alone = TorchBackend(make_setup(max_tokens_per_microbatch=32), model_path)
    alone.load(tmp_path)
    for _ in range(2):
        expected = alone.forward_backward(MINIBATCH), alone.optim_step(1e-2)
        found = await group.train_minibatch(MINIBATCH, 1e-2)
        assert found[0].num_tokens == expected[0].num_tokens
        assert found[0].loss == pytest.approx(expected[0].loss, rel=1e-4)
        assert found[0].entropy == pytest.approx(expected[0].entropy, rel=1e-5)
        assert found[0].logprob_abs_diff_max == pytest.approx(expected[0].logprob_abs_diff_max, rel=1e-4)
        assert found[1].grad_norm == pytest.approx(expected[1].grad_norm, rel=1e-4)
    sequences = [[1, 2, 3, 4], [5, 6], [7, 8, 9], []]
    for ours, theirs in zip(alone.logprobs(sequences), await group.logprobs(sequences), strict=True):
        assert theirs == pytest.approx(ours, abs=1e-4)


async def test_a_restored_group_goes_on_bit_by_bit(group: PolicyGroup, tmp_path: Path) -> None:
    await (await group.hold(tmp_path / "checkpoint", tmp_path / "model"))()
    for name in ("expected", "found"):
        await group.load(tmp_path / "checkpoint")
        await group.train_minibatch(MINIBATCH, 1e-2)
        await group.export(tmp_path / name)
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("expected", "found"))
    assert all(found[name].equal(tensor) for name, tensor in expected.items())


class Delayed(SharedFolder):
    """Files reach the driver only once the rank finds something beside their folder."""

    @override
    @contextmanager
    def sending(self, folder: Path) -> Iterator[Path]:
        yield folder
        deadline = Deadline.after(60)
        while not (folder.parent / "released").exists():
            deadline.check("the test to go on")
            threading.Event().wait(0.01)


async def test_ranks_train_while_a_checkpoint_is_written_and_it_is_of_before(
    group: PolicyGroup, tmp_path: Path
) -> None:
    def send_through(files: SharedFolder) -> None:
        ray.get([rank.__ray_call__.remote(lambda self: setattr(self, "_files", files)) for rank in group.ranks])

    async def exported(name: str) -> dict[str, Tensor]:
        await group.export(tmp_path / name)
        return load_file(tmp_path / name / "model.safetensors")

    before = await exported("before")
    send_through(Delayed())
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task((await group.hold(tmp_path / "state", tmp_path / "model"))())
            await group.train_minibatch(MINIBATCH, 1e-2)
            assert not writing.done()
            (tmp_path / "released").touch()
    finally:
        send_through(SHARED_FOLDER)
    after = await exported("after")
    await group.load(tmp_path / "state")
    restored, model = await exported("restored"), load_file(tmp_path / "model" / "model.safetensors")
    assert not all(after[name].equal(tensor) for name, tensor in before.items())
    for name, tensor in before.items():
        assert restored[name].equal(tensor)
        assert model[name].equal(tensor)


async def test_what_a_rank_raises_reaches_the_caller_and_the_group_goes_on(group: PolicyGroup, tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match=str(tmp_path)):
        await group.load(tmp_path)
    assert await group.logprobs([[1]]) == [[0.0]]


async def test_weights_that_ranks_hold_in_parts_reach_engines_whole_also_after_a_transfer_that_broke(
    group: PolicyGroup, tmp_path: Path
) -> None:
    def send_in_small_buckets(actor: Any) -> None:
        actor._sender = WeightSender(actor._backend.export_weights, rank=actor._rank, bucket_bytes=4096)

    for rank in group.ranks:
        await rank.__ray_call__.remote(send_in_small_buckets)
    sender = RemoteSender(group.ranks)
    plan = await sender.describe(60)

    async def join() -> GlooGroup:
        address, port = await sender.listen(60)
        async with asyncio.TaskGroup() as tasks:
            place = {"address": address, "port": port, "rank": 1, "world_size": 2, "timeout_seconds": 60}
            joined = tasks.create_task(asyncio.to_thread(GlooGroup.join, **place))
            tasks.create_task(sender.connect(2, 60))
        return joined.result()

    lost = await join()
    lost.close()
    with pytest.raises(SendError):
        await sender.send(60, with_digests=False)
    receiver = await join()
    async with asyncio.TaskGroup() as tasks:
        received = tasks.create_task(asyncio.to_thread(receive, receiver, plan))
        sent = await sender.send(60, with_digests=True)
    await sender.close(60)
    receiver.close()

    tensors, digests = received.result()
    assert len(digests) > 2
    assert digests == sent.digests
    await group.export(tmp_path / "model")
    expected = load_file(tmp_path / "model" / "model.safetensors")
    assert tensors.keys() == expected.keys()
    assert all(tensors[name].equal(tensor) for name, tensor in expected.items())


async def test_a_model_that_cannot_be_loaded_is_named(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=str(tmp_path)):
        await PolicyGroup.start(make_setup(), tmp_path)


async def test_a_backend_that_is_not_there_is_refused_by_field(cluster: None, model_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"trainer\.backend: tinker"):
        await PolicyGroup.start(make_setup(backend="tinker"), model_path)


async def test_ranks_get_their_places_together_or_none(group: PolicyGroup) -> None:
    each = {"num_cpus": 1}
    with pytest.raises(InvalidInputError, match=r"trainer\.ranks: 5 ranks want 5 CPU together and Ray has 4"):
        await Gang.reserve(5, each, timeout_seconds=60)
    with pytest.raises(WaitTimeoutError, match="3 places with 1 CPU each"):
        await Gang.reserve(3, each, timeout_seconds=0)
    rest = await Gang.reserve(2, each, timeout_seconds=60)
    assert sorted(rest.bundles) == [0, 1], "what was waited for in vain is held by nobody"
    rest.release()


async def test_a_rank_that_hangs_is_named_when_the_time_is_up(group: PolicyGroup) -> None:
    process = process_of(group, 1)
    usual, group._timeout_seconds = group._timeout_seconds, 0.5
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(WaitTimeoutError, match="waiting for policy rank 0, 1 to finish logprobs"):
            await group.logprobs([[1, 2, 3]])
    finally:
        os.kill(process, signal.SIGCONT)
        group._timeout_seconds = usual


async def test_a_rank_that_dies_is_named_though_the_others_fail_with_it(group: PolicyGroup) -> None:
    # the last test of the file: the group is of no more use
    os.kill(process_of(group, 1), signal.SIGKILL)
    with pytest.raises(PolicyRankLostError, match="policy rank 1 died during train_minibatch") as caught:
        await group.train_minibatch(MINIBATCH, 1e-2)
    assert caught.value.rank == 1
    group.stop()
    group.stop()
