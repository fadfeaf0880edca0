"""Membership of a broadcast: who is in it, and what happens when that changes."""

from dataclasses import dataclass, field
from typing import override

import pytest
from structlog.testing import capture_logs

from seatrial_rollout.engine.tensors import TensorSpec, TransferPlan
from seatrial_trainer.weight_sync.collective import CollectiveSync
from seatrial_trainer.weight_sync.gloo import GlooSync
from seatrial_trainer.weight_sync.nccl import NcclSync
from seatrial_trainer.weight_sync.protocol import WeightSyncError
from seatrial_trainer.weight_sync.remote_sender import Sender, SendError
from seatrial_trainer.weight_sync.sender import Sent
from tests.engine_doubles import FakeEngine, FakePool

METHODS = pytest.mark.parametrize("method", [GlooSync, NcclSync])
PLAN = TransferPlan([TensorSpec("w", "float32", [4])])


@dataclass
class FakeSender(Sender):
    """A sender that counts; it breaks when a test says so."""

    world_sizes: list[int] = field(default_factory=list)
    num_sent: int = 0
    num_closed: int = 0
    breaks: int = 0

    @override
    async def listen(self, timeout_seconds: float) -> tuple[str, int]:
        return "10.0.0.1", 1234

    @override
    async def connect(self, world_size: int, timeout_seconds: float) -> None:
        self.world_sizes.append(world_size)

    @override
    async def describe(self, timeout_seconds: float) -> TransferPlan:
        return PLAN

    @override
    async def send(self, timeout_seconds: float, *, with_digests: bool) -> Sent:
        if self.breaks:
            self.breaks -= 1
            raise SendError("a peer is gone")
        self.num_sent += 1
        return Sent(PLAN.num_bytes, [])

    @override
    async def close(self, timeout_seconds: float) -> None:
        self.num_closed += 1


@METHODS
async def test_ranks_follow_the_workers_of_each_engine(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a", num_workers=2), FakeEngine("b", num_workers=4)
    sender = FakeSender()

    report = await method(FakePool(a, b), sender).publish(1)

    assert [engine.joined[0]["rank_offset"] for engine in (a, b)] == [1, 3]
    assert {engine.joined[0]["world_size"] for engine in (a, b)} == {7}
    assert sender.world_sizes == [7]
    assert (report.num_engines, report.paused_seconds, report.bytes) == (2, 0.25, 16)


@METHODS
async def test_an_epoch_lasts_while_its_members_stay_the_same(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    sender = FakeSender()
    sync = method(FakePool(a, b), sender)

    for version in (1, 2, 3):
        await sync.publish(version)

    assert sender.world_sizes == [3]
    assert sender.num_sent == 3


@METHODS
async def test_a_joiner_begins_a_new_epoch(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    pool, sender = FakePool(a), FakeSender()
    sync = method(pool, sender)
    await sync.publish(1)
    pool.engines.append(b)

    await sync.publish(2)

    assert sender.world_sizes == [2, 3]
    assert a.num_left == 1
    assert (a.state.version, b.state.version) == (2, 2)


@METHODS
async def test_a_replaced_server_begins_a_new_epoch(method: type[CollectiveSync]) -> None:
    a = FakeEngine("a")
    sender = FakeSender()
    sync = method(FakePool(a), sender)
    await sync.publish(1)
    a.replace_server("a-server-2")

    await sync.publish(2)

    assert len(a.joined) == 2


@pytest.mark.parametrize(
    ("method", "step"),
    [(GlooSync, "join"), (GlooSync, "stage"), (GlooSync, "load"), (NcclSync, "join"), (NcclSync, "load")],
)
async def test_a_member_that_fails_once_is_tried_again_in_a_new_epoch(method: type[CollectiveSync], step: str) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    sender = FakeSender()
    b.fails_at = step

    report = await method(FakePool(a, b), sender).publish(1)

    assert report.num_engines == 2
    assert (a.state.version, b.state.version) == (1, 1)
    assert sender.num_closed == 1


@METHODS
async def test_survivors_go_on_without_a_member_that_is_gone(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    sender = FakeSender(breaks=1)
    pool = FakePool(a, b)
    sync = method(pool, sender)
    b.fails_at = "load"
    b.replace_server("")  # no server: it is being restarted

    report = await sync.publish(1)

    assert report.num_engines == 1
    assert report.failures == ("it has no server",)
    assert a.state.version == 1
    assert b.expected == 1  # it admits nothing until it has the version


@METHODS
async def test_when_no_engine_is_left_publishing_says_why(method: type[CollectiveSync]) -> None:
    a = FakeEngine("a")
    pool = FakePool(a)

    with pytest.raises(WeightSyncError, match="a peer is gone"):
        await method(pool, FakeSender(breaks=100)).publish(1)

    assert pool.version == 0


@METHODS
async def test_repair_brings_the_version_only_to_those_that_lack_it(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    pool, sender = FakePool(a, b), FakeSender()
    sync = method(pool, sender)
    await sync.publish(5)
    b.replace_server("b-server-2")

    assert await sync.repair() == 1
    assert await sync.repair() == 0

    assert b.state.version == 5
    assert sender.num_sent == 2
    assert len(a.joined) == 1


@METHODS
async def test_engines_that_hold_different_weights_are_no_version_in_debug_mode(method: type[CollectiveSync]) -> None:
    a, b = FakeEngine("a"), FakeEngine("b")
    b.digests = {"w": "1", "x": "3"}
    a.digests = {"w": "1", "x": "2"}
    pool = FakePool(a, b)

    with pytest.raises(WeightSyncError, match="b and a differ in 1 weights: x"):
        await method(pool, FakeSender(), verify_checksums=True).publish(1)

    assert pool.version == 0
    b.digests = a.digests
    assert (await method(pool, FakeSender(), verify_checksums=True).publish(1)).num_engines == 2


@METHODS
async def test_an_engine_that_is_lost_before_it_is_compared_ends_nothing(method: type[CollectiveSync]) -> None:
    a, b, c = FakeEngine("a"), FakeEngine("b"), FakeEngine("c")
    a.fails_at = b.fails_at = "checksums"
    c.digests = {"w": "1"}
    with capture_logs() as logs:
        await method(FakePool(a, b, c), FakeSender(), verify_checksums=True).publish(1)
    assert [event["engine"] for event in logs if event["event"] == "an engine's weights are not compared"] == ["a", "b"]
