"""Calls to the policy's ranks: what the driver is told when one breaks, or says nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.remote_sender import RemoteSender, SendError

PLAN = TransferPlan([])


def rank(answer: Callable[[str], Awaitable[Any]]) -> Any:
    """The handle of an actor that answers every call so."""
    return SimpleNamespace(
        weight_sender=SimpleNamespace(remote=lambda method, *_, **__: answer(method)),
        node_address=SimpleNamespace(remote=lambda: answer("node_address")),
    )


async def describes(_: str) -> TransferPlan:
    return PLAN


async def breaks(method: str) -> TransferPlan:
    raise RayTaskError(method, "a traceback", RuntimeError("connection reset by peer"))


async def says_nothing(_: str) -> TransferPlan:
    await asyncio.Event().wait()
    raise AssertionError


async def test_the_answer_of_the_first_rank_is_the_answer() -> None:
    assert await RemoteSender([rank(describes), rank(describes)]).describe(20) is PLAN


@pytest.mark.parametrize("others", [[], [rank(describes)]])
async def test_a_transfer_that_breaks_is_one_error_which_the_next_epoch_can_follow(others: list[Any]) -> None:
    sender = RemoteSender([rank(breaks), *others])

    with pytest.raises(SendError, match="send: connection reset by peer"):
        await sender.send(20, with_digests=False)


async def test_a_rank_that_says_nothing_is_named_when_the_time_is_up() -> None:
    sender = RemoteSender([rank(describes), rank(says_nothing)], margin_seconds=0)

    with pytest.raises(SendError, match="describe: policy rank 1 did not answer within 0 s"):
        await sender.describe(0.01)
    with pytest.raises(SendError, match="node_address: policy rank 0"):
        await RemoteSender([rank(says_nothing)], margin_seconds=0).listen(0.01)
