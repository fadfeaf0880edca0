"""What is compared, what is kept, and when it is time for a snapshot."""

import time

import pytest
from mcp_types import CallToolResult, ImageContent, TextContent

from seatrial_rollout.harness.replay.journal import Journal, JournaledCall
from seatrial_rollout.harness.replay.observation import Observation, canonical, days_of_trial, observe

NOON = 1_796_040_000.0  # 2026-11-30, 12:00 UTC
DAYS = days_of_trial(NOON, NOON + 3600)


def said(text: str, **more: object) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], **more)


def is_equal(one: CallToolResult, other: CallToolResult) -> bool:
    return observe(one, DAYS).sha256 == observe(other, DAYS).sha256


def test_what_is_for_clients_and_the_order_of_keys_do_not_count() -> None:
    plain = said("7", structured_content={"a": 1, "b": [2]})
    marked = CallToolResult(
        content=[TextContent(type="text", text="7", annotations={"priority": 1.0}, _meta={"took": 0.3})],
        structured_content={"b": [2], "a": 1},
        _meta={"request": 12},
    )
    assert is_equal(plain, marked)


@pytest.mark.parametrize(
    "other",
    [
        said("7 "),
        said("7", is_error=True),
        said("7", structured_content={"a": 2}),
        CallToolResult(content=[TextContent(type="text", text="7"), TextContent(type="text", text="")]),
        CallToolResult(content=[ImageContent(type="image", data="Nw==", mime_type="image/png")]),
    ],
)
def test_all_that_a_model_could_come_to_know_counts(other: CallToolResult) -> None:
    assert not is_equal(said("7"), other)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("changed: 2026-11-30 12:01:00 UTC", "changed: 2026-11-30 12:31:59 UTC"),
        ("at 2026-11-30T23:59:59.5", "at 2026-12-01T00:00:01,25"),
        ("-rw-r--r-- 1 agent agent 3 Nov 30 12:01 a.txt", "-rw-r--r-- 1 agent agent 3 Dec  1 00:10 a.txt"),
        ("Mon Nov 30 12:01:07 UTC 2026", "Mon Nov 30 12:02:08 UTC 2026"),
    ],
)
def test_the_time_that_goes_by_meanwhile_is_no_difference(then: str, now: str) -> None:
    assert is_equal(said(then), said(now))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("due 2024-03-01 10:30", "due 2024-03-01 10:31"),  # another day is data
        ("due 2026-11-30", "due 2026-12-01"),  # a day is no time
        ("meeting at 10:30", "meeting at 10:31"),  # nor is this told from data
        ("2026-11-30 12:01 lamp 7", "2026-11-30 12:01 lamp 8"),
    ],
)
def test_other_dates_and_times_are_data(then: str, now: str) -> None:
    assert not is_equal(said(then), said(now))


def test_a_trial_over_many_days_knows_them_all() -> None:
    days = days_of_trial(NOON, NOON + 3 * 86_400)
    assert {"2026-11-29", "2026-11-30", "2026-12-01", "2026-12-02", "2026-12-03", "2026-12-04", "Dec  4"} <= days
    assert "2026-12-05" not in days
    assert time.strftime("%Y-%m-%d", time.gmtime(NOON)) == "2026-11-30"


def test_text_that_is_no_unicode_can_be_compared() -> None:
    assert is_equal(said("\udcff"), said("\udcff"))
    assert "\udcff" in canonical(said("\udcff"), DAYS)


def test_the_tail_is_what_came_after_the_newest_snapshot() -> None:
    journal = Journal(snapshot_every_calls=3)
    answer = observe(said("7"), DAYS)
    due = []
    for number in range(1, 8):
        journal.record("code", "code_exec", {"code": str(number)}, answer)
        due.append(journal.is_snapshot_due)
        if number == 3:
            journal.saved()
        if number == 6:
            journal.put_off()
    assert due == [False, False, True, False, False, True, False]
    assert [call.number for call in journal.tail] == [4, 5, 6, 7]
    assert journal.num_calls == 7


def test_without_snapshots_the_tail_is_everything() -> None:
    journal = Journal(snapshot_every_calls=0)
    journal.record("code", "code_exec", {}, observe(said("7"), DAYS))
    assert not journal.is_snapshot_due
    assert len(journal.tail) == 1


def test_a_difference_tells_both_answers_or_their_hashes() -> None:
    call = JournaledCall(7, "code", "code_exec", {"code": "x" * 500}, Observation("aa", "seven"))
    assert str(call).startswith("call 7, code_exec({'code': 'xxx")
    assert len(str(call)) < 300
    assert call.difference(Observation("aa", "seven")) == ""
    assert call.difference(Observation("bb", "eight")) == "it was answered 'seven', and now 'eight'"
    assert "hash aa, and now has bb" in call.difference(Observation("bb", "seven"))
