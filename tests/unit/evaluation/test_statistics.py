import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.outcome import Outcome
from seatrial_api.stage_report import ToolUse
from seatrial_trainer.evaluation.statistics import estimate_gain, estimate_mean, estimate_share, pass_at_k
from seatrial_trainer.evaluation.summary import UNKNOWN_TOOL, summarize
from tests.trajectories import make_trajectory


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass(tries: list[bool], k: int) -> None:
    if k > len(tries):
        with pytest.raises(ValueError, match="at least"):
            pass_at_k(len(tries), sum(tries), k)
        return
    subsets = list(itertools.combinations(tries, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(tries), sum(tries), k) == pytest.approx(expected)


def test_the_interval_of_equal_tasks_is_a_point() -> None:
    estimate = estimate_mean([[1.0, 0.0], [0.0, 1.0]])
    assert (estimate.mean, estimate.low, estimate.high, estimate.count) == (0.5, 0.5, 0.5, 2)


def test_tries_of_one_task_do_not_narrow_the_interval() -> None:
    one_try = estimate_mean([[1.0], [0.0], [1.0], [0.0]])
    many_tries = estimate_mean([[1.0] * 50, [0.0] * 50, [1.0] * 50, [0.0] * 50])
    assert many_tries == one_try


def test_few_tasks_that_all_went_one_way_prove_little() -> None:
    none, every = estimate_share([[0.0, 0.0]] * 6), estimate_share([[1.0]] * 6)
    assert (none.mean, none.low, none.high) == (0.0, 0.0, pytest.approx(0.459, abs=1e-3))
    assert (every.mean, every.low, every.high) == (1.0, pytest.approx(0.541, abs=1e-3), 1.0)
    assert estimate_share([[1.0], [0.0]]) == estimate_mean([[1.0], [0.0]])


def test_a_gain_is_paired_by_task() -> None:
    before = {"a": [0.0], "b": [1.0], "gone": [1.0]}
    after = {"a": [1.0], "b": [1.0], "new": [0.0]}
    gain = estimate_gain(before, after)
    assert gain.mean == 0.5
    assert gain.count == 2


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        estimate_mean([])


def test_a_summary_leaves_infrastructure_outcomes_out_of_every_rate() -> None:
    trajectories = [
        make_trajectory("a/0", task="a", reward=1.0),
        make_trajectory("b/0", task="b", reward=0.3, failed_calls=1),
        make_trajectory("b/1", task="b", outcome=Outcome.SANDBOX_FAILED),
    ]
    result = summarize("held-out", "archipelago", trajectories)
    assert result.pass_at_1.mean == 0.5
    assert result.mean_reward.mean == pytest.approx(0.65)
    assert result.outcomes == {"Completed": 2, "SandboxFailed": 1}
    assert result.behaviour["tool_success_rate"] == pytest.approx(2 / 3)
    assert result.by_tool["sheets_lookup"] == ToolUse(calls=3, failed=1, trials=2, passed=1)


def test_pass_at_k_has_an_interval_over_tasks_and_goes_up_to_the_number_of_tries() -> None:
    results = {f"t{n}": [1.0, 0.0, 0.0] for n in range(4)} | {"hard": [0.0, 0.0, 0.0]}
    tries = [
        make_trajectory(f"{task}/{n}", task=task, reward=reward)
        for task, rewards in results.items()
        for n, reward in enumerate(rewards)
    ]
    estimates = summarize("held-out", "archipelago", tries).pass_at_k
    assert list(estimates) == [1, 2, 3]
    assert estimates[3].mean == 0.8
    assert estimates[3].low < 0.8 < estimates[3].high
    assert estimates[3].count == 5


def test_a_tool_that_never_worked_under_no_server_is_made_up_and_one_that_did_is_an_agents_own() -> None:
    (turn,) = make_trajectory().turns
    (known,) = turn.tool_calls
    shell = known.model_copy(update={"server": "", "tool": "bash"})
    calls = [known, shell, shell, shell.model_copy(update={"tool": "abra", "is_error": True})]
    tried = make_trajectory().model_copy(update={"turns": [turn.model_copy(update={"tool_calls": calls})]})
    result = summarize("held-out", "opencode", [tried])
    assert {name: use.calls for name, use in result.by_tool.items()} == {"bash": 2, UNKNOWN_TOOL: 1, "sheets_lookup": 1}
    assert result.behaviour["code_share"] == 0.5
