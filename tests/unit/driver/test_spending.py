"""What a run has cost, over all its attempts."""

import asyncio
from pathlib import Path

import pytest

from seatrial_api.ceilings import Usage
from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.operations import CostSpec
from seatrial_trainer.driver.spending import Spending
from seatrial_trainer.storage.run_storage import USAGE_FILE
from tests.clocks import HeldClock

PRICES = CostSpec(node_hour=4.0, prompt_million_tokens=2.0, completion_million_tokens=10.0)


def test_nodes_cost_by_the_hour_and_tokens_by_the_million() -> None:
    clock = HeldClock()
    spending = Spending(PRICES, nodes=3, clock=clock)
    spending.add(Usage(prompt_tokens=500_000, completion_tokens=100_000, cached_prompt_tokens=9_000_000))
    clock.advance(1800)
    assert spending.dollars == pytest.approx(3 * 0.5 * 4.0 + 1.0 + 1.0)


def test_an_attempt_goes_on_from_what_those_before_it_spent(tmp_path: Path) -> None:
    clock = HeldClock()
    first = Spending(PRICES, clock=clock)
    first.go_on(tmp_path / USAGE_FILE)
    first.add(Usage(prompt_tokens=1_000_000))
    clock.advance(3600)
    first.keep()
    clock.advance(7200)  # between attempts no node is held
    second = Spending(PRICES, clock=clock)
    assert second.dollars == 0
    second.go_on(tmp_path / USAGE_FILE)
    assert second.dollars == pytest.approx(4.0 + 2.0)
    clock.advance(3600)
    second.keep()
    third = Spending(PRICES, clock=clock)
    third.go_on(tmp_path / USAGE_FILE)
    assert third.dollars == pytest.approx(4.0 + 2.0 + 4.0)


def test_what_the_judge_spent_is_counted_once_whether_its_log_lives_on_or_not(tmp_path: Path) -> None:
    first = Spending(clock=HeldClock())
    first.go_on(tmp_path / USAGE_FILE)
    assert not first.has_prices
    for told in (0.0, 2.0, 3.0, 3.0):
        first.judged(told)
    first.keep()
    assert first.has_prices
    assert first.dollars == pytest.approx(3.0)
    for told, spent in ((5.0, 5.0), (1.0, 4.0)):
        later = Spending(clock=HeldClock())
        later.go_on(tmp_path / USAGE_FILE)
        later.judged(told)
        assert later.dollars == pytest.approx(spent)


async def test_it_is_written_now_and_then_while_the_driver_lives(tmp_path: Path) -> None:
    spending = Spending(PRICES, clock=HeldClock())
    spending.go_on(tmp_path / USAGE_FILE)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(spending.keep_on())
        later = Spending(PRICES, clock=HeldClock())
        while later.dollars == 0:
            await SYSTEM_CLOCK.sleep(0.01)
            later.go_on(tmp_path / USAGE_FILE)
        keeping.cancel()


def test_what_cannot_be_read_is_left_out_and_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / USAGE_FILE).write_text('{"nodeHours"')
    damaged = Spending(PRICES, clock=HeldClock())
    damaged.go_on(tmp_path / USAGE_FILE)
    assert damaged.dollars == 0
    (tmp_path / "file").touch()
    lost = Spending(PRICES, clock=HeldClock())
    lost.go_on(tmp_path / "file" / USAGE_FILE)
    lost.keep()
    assert (tmp_path / "file").is_file()
