"""The sender, with real gloo groups whose other ranks are threads of the test."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from seatrial_rollout.engine.gloo import GlooGroup
from seatrial_trainer.weight_sync.sender import WeightSender
from tests.weight_receiver import receive

WEIGHTS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.zeros(0)}
ADDRESS = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that are the receivers."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def sender() -> Iterator[WeightSender]:
    """A sender whose tensors need several buckets."""
    sender = WeightSender(lambda: iter(WEIGHTS.items()), bucket_bytes=32)
    yield sender
    sender.close()


def connect(sender: WeightSender, pool: ThreadPoolExecutor, num_receivers: int, seconds: float = 20) -> list[GlooGroup]:
    """Bring sender and receivers into one group."""
    port = sender.listen(ADDRESS, seconds)
    world_size = num_receivers + 1

    def join(rank: int) -> GlooGroup:
        return GlooGroup.join(address=ADDRESS, port=port, rank=rank, world_size=world_size, timeout_seconds=seconds)

    joins = [pool.submit(join, rank) for rank in range(1, world_size)]
    sender.connect(world_size, seconds)
    return [future.result() for future in joins]


def test_every_receiver_gets_every_tensor(sender: WeightSender, pool: ThreadPoolExecutor) -> None:
    groups = connect(sender, pool, 2)
    for _ in range(2):  # a group serves any number of transfers
        received = [pool.submit(receive, group, sender.describe()) for group in groups]
        sent = sender.send(with_digests=True)

        for future in received:
            tensors, digests = future.result()
            assert digests == sent.digests
            assert all(torch.equal(tensors[name], WEIGHTS[name]) for name in WEIGHTS)
    assert len(sent.digests) == 2
    assert sent.num_bytes == 12 * 4 + 5 * 2


def test_a_receiver_that_leaves_ends_the_transfer(sender: WeightSender, pool: ThreadPoolExecutor) -> None:
    (group,) = connect(sender, pool, 1)
    group.close()

    with pytest.raises(RuntimeError):
        sender.send()


def test_a_transfer_that_breaks_leaves_no_other_rank_behind_in_the_export(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(2, timeout=20)

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for item in WEIGHTS.items():
            together.wait()  # as where ranks put their parts of a weight together
            yield item

    first, second = (WeightSender(export, rank=rank, bucket_bytes=32) for rank in (0, 1))
    described = pool.submit(second.describe)
    first.describe()
    described.result()
    (group,) = connect(first, pool, 1)
    group.close()
    sent = pool.submit(second.send)

    with pytest.raises(RuntimeError):
        first.send()
    sent.result()
    assert not together.broken
    first.close()


def test_a_receiver_that_says_nothing_ends_the_transfer_in_time(
    pool: ThreadPoolExecutor,
) -> None:
    large = {"w": torch.zeros(64 * 1024**2)}  # more than the kernel's socket buffers take
    sender = WeightSender(lambda: iter(large.items()))
    groups = connect(sender, pool, 1, seconds=2)

    with pytest.raises(RuntimeError):
        sender.send()
    sender.close()
    groups[0].close()


def test_a_sender_that_leaves_ends_what_receivers_wait_for(sender: WeightSender, pool: ThreadPoolExecutor) -> None:
    (group,) = connect(sender, pool, 1)
    waiting: Future[object] = pool.submit(receive, group, sender.describe())

    sender.close()

    with pytest.raises(RuntimeError):
        waiting.result(timeout=20)


def test_a_group_that_does_not_fill_up_is_given_up(sender: WeightSender) -> None:
    sender.listen(ADDRESS, 1)

    with pytest.raises(RuntimeError):
        sender.connect(2, 1)


def test_a_new_group_can_follow_an_old_one(sender: WeightSender, pool: ThreadPoolExecutor) -> None:
    connect(sender, pool, 2)
    (group,) = connect(sender, pool, 1)
    received = pool.submit(receive, group, sender.describe())
    sender.send()

    assert torch.equal(received.result()[0]["a"], WEIGHTS["a"])


def test_sending_without_a_group_says_what_is_missing(sender: WeightSender) -> None:
    with pytest.raises(RuntimeError, match="call listen first"):
        sender.send()


def test_ranks_other_than_the_first_take_part_in_the_export_alone() -> None:
    exported = []

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for item in WEIGHTS.items():
            exported.append(item[0])
            yield item

    sender = WeightSender(export, rank=1)
    sender.describe()
    sender.send()

    assert exported == [*WEIGHTS, *WEIGHTS]
