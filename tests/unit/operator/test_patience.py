"""Waiting for a cluster that is not ready."""

from dataclasses import dataclass, field
from typing import override

import pytest

from seatrial_operator.kube.errors import MissingKindError, UnavailableError
from seatrial_operator.kube.patience import patiently
from tests.clocks import HeldClock


@dataclass
class SleepLog(HeldClock):
    """Remembers how long each sleep was to be."""

    sleeps: list[float] = field(default_factory=list)

    @override
    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await super().sleep(seconds)


async def test_it_waits_longer_each_time_up_to_a_bound_and_says_what_for() -> None:
    clock, told = SleepLog(), list[str]()
    refusals = iter([*[UnavailableError(request="get /version", detail="refused")] * 7])

    async def attempt() -> str:
        for refusal in refusals:
            raise refusal
        return "there"

    assert await patiently(attempt, told.append, clock) == "there"
    assert clock.sleeps == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert told == ["get /version: refused"] * 7


async def test_a_kind_that_is_not_there_yet_is_waited_for() -> None:
    clock, told = HeldClock(), list[str]()

    async def attempt() -> None:
        if clock.now() < 60:
            raise MissingKindError(request="discover rayjobs.ray.io", detail="the cluster has none; install KubeRay")

    await patiently(attempt, told.append, clock)
    assert told[-1] == "discover rayjobs.ray.io: the cluster has none; install KubeRay"


async def test_what_waiting_does_not_mend_ends_it() -> None:
    async def attempt() -> None:
        raise ValueError("no key")

    with pytest.raises(ValueError, match="no key"):
        await patiently(attempt, print, HeldClock())
