"""Weights by NCCL as far as that goes without a GPU: our sender and vLLM's own receiver meet, over gloo.

Real are both ends, what they tell each other, where they meet, and the order of the collectives. Stood in for are
NCCL's communicator and CUDA's streams.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, override

import pytest
import torch
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import packed_tensor
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from seatrial_rollout.engine.control import UpdateReport
from seatrial_rollout.engine.gloo import GlooGroup
from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.nccl import NcclSync
from seatrial_trainer.weight_sync.remote_sender import Sender, SendError
from seatrial_trainer.weight_sync.sender import Sent, WeightSender
from seatrial_trainer.weight_sync.transport import AbortableGroup
from tests.engine_doubles import FakeEngine, FakePool

CPU = torch.device("cpu")
ADDRESS = "127.0.0.1"
SECONDS = 20.0


class GlooCommunicator:
    """Has what both ends use of vLLM's `PyNcclCommunicator`."""

    disabled = False

    def __init__(self, group: StatelessProcessGroup, device: int) -> None:
        assert device == 0
        self.device = CPU
        self._gloo = GlooGroup(
            group.store, host=ADDRESS, rank=group.rank, world_size=group.world_size, timeout_seconds=SECONDS
        )

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send, or receive in place."""
        assert src == 0
        assert tensor.device == self.device
        self._gloo.broadcast(tensor)

    def destroy(self) -> None:
        """Leave."""
        self._gloo.close()


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what asks for streams and devices of a GPU do without."""

    @contextmanager
    def on_stream(_: object) -> Iterator[None]:
        yield

    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(pynccl, "PyNcclCommunicator", GlooCommunicator)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda _, num_buffers: (stream,) * num_buffers)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)


class Model:
    """Notes what vLLM loads into it, chunk by chunk."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, torch.Tensor]] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """As vLLM's models have it."""
        self.chunks.append({name: tensor.clone() for name, tensor in weights})


class ReceivingEngine(FakeEngine):
    """An engine with one worker, which has vLLM's receiver."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.model = Model()
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_index=0, world_size=1, rank=0), model_config=None
        )
        self.receiver = NCCLWeightTransferEngine(None, config, CPU, self.model)

    @override
    async def join_transfer(self, rendezvous: Mapping[str, Any], timeout_seconds: float) -> None:
        await super().join_transfer(rendezvous, timeout_seconds)
        info = self.receiver.parse_init_info(dict(rendezvous))
        await asyncio.to_thread(self.receiver.init_transfer_engine, info)

    @override
    async def load_staged(self, update_info: Mapping[str, Any], version: int, **options: Any) -> UpdateReport:
        await asyncio.to_thread(self.receiver.update_weights, dict(update_info))
        return await super().load_staged(update_info, version, **options)

    @override
    async def leave_transfer(self, timeout_seconds: float) -> None:
        await super().leave_transfer(timeout_seconds)
        self.receiver.shutdown()


class LocalSender(Sender):
    """The sender in this process."""

    def __init__(self, weights: Mapping[str, torch.Tensor], bucket_bytes: int) -> None:
        self._sender = WeightSender(lambda: iter(weights.items()), bucket_bytes=bucket_bytes)

    @override
    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        return ADDRESS, self._sender.listen(ADDRESS, timeout_seconds, "nccl")

    @override
    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        await asyncio.to_thread(self._sender.connect, world_size, timeout_seconds)

    @override
    async def describe(self, timeout_seconds: float) -> TransferPlan:
        return self._sender.describe()

    @override
    async def send(self, timeout_seconds: float, *, with_digests: bool) -> Sent:
        try:
            return await asyncio.to_thread(self._sender.send, with_digests=with_digests)
        except RuntimeError as error:
            raise SendError(str(error)) from error

    @override
    async def close(self, timeout_seconds: float) -> None:
        self._sender.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's receiver imports all of torch's compiler
async def test_vllms_receiver_takes_what_our_sender_sends(without_gpus: None) -> None:
    weights = {
        "a": torch.arange(12.0).reshape(3, 4),
        "b": torch.ones(6, dtype=torch.bfloat16),
        "c": torch.arange(12.0).reshape(4, 3).T,  # not contiguous
        "d": torch.tensor(7.0),
    }
    a, b = ReceivingEngine("a"), ReceivingEngine("b")
    pool = FakePool(a)
    sync = NcclSync(pool, LocalSender(weights, bucket_bytes=64), timeout_seconds=3 * SECONDS)
    await sync.publish(1)
    pool.engines.append(b)  # a joiner: another epoch

    report = await sync.publish(2)
    await sync.close()

    assert (report.num_engines, report.bytes, report.failures) == (2, 12 * 4 * 2 + 6 * 2 + 4, ())
    assert len(a.model.chunks) == 2 * len(b.model.chunks)
    assert [list(chunk) for chunk in b.model.chunks] == [["a", "b", "c"], ["d"]]
    for model in (a.model, b.model):
        for name, tensor in ((name, tensor) for chunk in model.chunks for name, tensor in chunk.items()):
            assert tensor.dtype == weights[name].dtype
            assert torch.equal(tensor, weights[name])


def test_a_transfer_that_no_engine_takes_is_aborted_in_time_and_sends_nothing_more() -> None:
    aborted = threading.Event()
    communicator = SimpleNamespace(
        broadcast=lambda _, src: aborted.wait(SECONDS + src),  # like a kernel that waits for a peer
        destroy=aborted.set,
    )
    group = AbortableGroup(communicator)

    with pytest.raises(RuntimeError, match="did not take the weights in time"), group.bounded(0.05):
        group.broadcast(torch.zeros(1), src=0)
    assert aborted.is_set()
    with pytest.raises(RuntimeError):
        group.broadcast(torch.zeros(1), src=0)


def test_a_transfer_that_is_done_in_time_is_not_aborted() -> None:
    group = AbortableGroup(SimpleNamespace(broadcast=lambda _, src: src, destroy=pytest.fail))

    with group.bounded(SECONDS):
        group.broadcast(torch.zeros(1), src=0)
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]

    for timer in timers:
        timer.join(SECONDS / 2)
        assert not timer.is_alive()
