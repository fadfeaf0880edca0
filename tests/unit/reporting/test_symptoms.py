"""Planted faults, each of which has to be named, beside healthy tools, of which nothing may be said."""

import json

import pytest

from seatrial_api.spec.harness import ToolResultLimit
from seatrial_api.trajectory import GivenSpan, ToolCall, Trajectory
from seatrial_rollout.harness.tool_result import cut
from seatrial_trainer.reporting.packages import imported, missing, summarize_packages
from seatrial_trainer.reporting.symptoms import Suspicion, Symptom, argument_shape, find_symptoms, runs_together
from tests.trajectories import make_trajectory

COLLAPSED = "QuarterRevenueCost\nNorth1,204.501,310.20\nSouth987.10455.00\nTotal2,191.601,765.20"
KEPT = "Quarter | Revenue | Cost\nNorth | 1,204.50 | 1,310.20\nSouth | 987.10 | 455.00\nTotal | 2,191.60 | 1,765.20"


def call(server: str, tool: str, result: str, *, is_error: bool = False, **arguments: object) -> ToolCall:
    return ToolCall(
        server=server,
        tool=tool,
        arguments=json.dumps(arguments),
        result=result,
        is_error=is_error,
        duration_seconds=0.1,
    )


def trial(number: int, *calls: ToolCall, reward: float = 1.0, offered: tuple[str, ...] = ()) -> Trajectory:
    trajectory = make_trajectory(f"g{number}/0", task=f"task-{number}", reward=reward)
    turn = trajectory.turns[0].model_copy(update={"tool_calls": list(calls)})
    tools = json.dumps([{"type": "function", "function": {"name": name}} for name in offered])
    given = [GivenSpan(sequence=0, start=0, stop=3, messages="[]", tools=tools)]
    return trajectory.model_copy(update={"turns": [turn], "given": given})


def healthy(number: int, *more: ToolCall, **options: object) -> Trajectory:
    calls = (
        call("pdf", "read_page", KEPT, path=f"{number}.pdf"),
        call("sheets", "edit_cell", "B2 is now 7", path="a.xlsx"),
        call(
            "code",
            "code_exec",
            "Traceback (most recent call last):\n  KeyError: 'price'\nexit code 1",
            code="python x.py",
        ),
        call("code", "code_exec", "Python 3.12.1, released 2023.12.07", code="python --version"),
    )
    return trial(number, *calls, *more, **options)  # type: ignore[arg-type]  # reward and offered


def only(found: list[Suspicion]) -> Suspicion:
    (one,) = found
    return one


def test_nothing_is_said_of_tools_that_work() -> None:
    assert find_symptoms([healthy(number) for number in range(6)]) == []


def test_a_tool_that_returns_nothing_on_success_is_named_with_what_it_costs() -> None:
    broken = [healthy(number, call("docs", "add_paragraph", "", text="x"), reward=0.2) for number in range(4)]
    found = only(find_symptoms([*broken, *(healthy(number) for number in range(4, 10))]))
    assert (found.symptom, found.tool) == (Symptom.ANSWERS_NOTHING, "docs_add_paragraph")
    assert (found.calls, found.out_of, found.trials) == (4, 4, 4)
    assert (found.reward_with, found.reward_without) == (pytest.approx(0.2), pytest.approx(1.0))


def test_columns_that_collapse_are_named() -> None:
    found = only(find_symptoms([healthy(number, call("pdf", "tables", COLLAPSED)) for number in range(3)]))
    assert (found.symptom, found.tool) == (Symptom.RUNS_TOGETHER, "pdf_tables")
    assert "QuarterRevenueCost" in found.detail


@pytest.mark.parametrize(
    "text",
    [
        KEPT,
        "Python3.12 is there\nnode v22.1.0\nversion 1.20.300 of 12.05.2024",
        "10.0.12.255 answered in 3.5 ms\n10.0.12.254 answered in 12.25 ms",
        "| A1 | 12.50 |\n| B2 | 13.75 |",
        "Q1 2024: 1,204.50 EUR\nQ2 2024: 1,310.20 EUR",
    ],
)
def test_tables_versions_addresses_and_amounts_do_not_run_together(text: str) -> None:
    assert not runs_together(call("pdf", "read", text))


def test_a_traceback_that_is_called_success_is_named_unless_the_agents_own_code_said_it() -> None:
    text = "Traceback (most recent call last):\n  ValueError: bad zip"
    found = only(find_symptoms([healthy(number, call("slides", "read", text, path="a.pptx")) for number in range(3)]))
    assert (found.symptom, found.tool) == (Symptom.TRACEBACK_AS_ANSWER, "slides_read")


def test_answers_that_are_cut_are_named() -> None:
    text = cut("x" * 500, ToolResultLimit(max_chars=300, head_chars=100, tail_chars=100))
    found = only(find_symptoms([healthy(number, call("mail", "list", text)) for number in range(3)]))
    assert (found.symptom, found.tool) == (Symptom.TRUNCATED, "mail_list")


def test_a_package_that_is_not_there_is_named_and_counted() -> None:
    attempt = call("code", "code_exec", "ModuleNotFoundError: No module named 'docx'", code="import docx, re")
    trials = [healthy(number, attempt) for number in range(3)]
    found = only(find_symptoms(trials))
    assert (found.symptom, found.tool, found.trials) == (Symptom.MISSING, "docx", 3)
    packages = {one.name: (one.used, one.missing) for one in summarize_packages([*trials, healthy(9)])}
    assert packages["docx"] == (3, 3)


def test_an_error_that_comes_in_task_after_task_is_named_with_the_arguments_that_met_it() -> None:
    failed = call("sheets", "lookup", "no column 'price'", is_error=True, path="a.xlsx", row=3)
    worked = call("sheets", "lookup", "7", path="a.xlsx", row="3")
    found = find_symptoms([healthy(number, failed, worked) for number in range(3)])
    assert [one.symptom for one in found] == [Symptom.LATE_SUCCESS, Symptom.SAME_ERROR]
    assert "1.0 failed calls before the first that works" in found[0].detail
    assert "no column '…'  called with {path: string, row: number}" in found[1].detail


def test_an_error_of_one_task_alone_is_the_tasks() -> None:
    failed = call("sheets", "read_tab", "no such file", is_error=True)
    worked = call("sheets", "read_tab", "a | b")
    assert find_symptoms([trial(0, worked, failed) for _ in range(5)]) == []


def test_a_tool_that_is_offered_and_never_called_comes_last() -> None:
    trials = [healthy(number, call("docs", "add", ""), offered=("pdf_read_page", "chat_post")) for number in range(3)]
    found = find_symptoms(trials)
    assert [(one.symptom, one.tool) for one in found] == [
        (Symptom.ANSWERS_NOTHING, "docs_add"),
        (Symptom.NEVER_USED, "chat_post"),
    ]


def test_names_that_the_model_made_up_are_not_a_tools_fault() -> None:
    assert find_symptoms([healthy(number, call("", "made_up", "", is_error=True)) for number in range(5)]) == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import pandas as pd\nfrom docx.shared import Pt", ["pandas", "docx"]),
        ("python -c 'import numpy; print(numpy)'", ["numpy"]),
        ("python - <<EOF\n  from  openpyxl import load_workbook\nEOF", ["openpyxl"]),
        ("echo 'we import goods from abroad'", []),
    ],
)
def test_imports_are_found_in_code_and_in_shell(code: str, names: list[str]) -> None:
    assert list(imported(call("code", "code_exec", "", code=code))) == names


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ("ModuleNotFoundError: No module named 'docx.shared'", ["docx"]),
        ("Error: Cannot find module 'exceljs'", ["exceljs"]),
        ("Error: Cannot find module './mine'", []),
        ("bash: line 1: pdftotext: command not found", ["pdftotext"]),
        ("sh: 1: jq: not found", ["jq"]),
        ("Error in library(dplyr) : there is no package called `dplyr`", ["dplyr"]),
        ("row 7 of a.xlsx: price not found", []),
    ],
)
def test_what_is_missing_is_found_in_the_words_of_several_languages(answer: str, names: list[str]) -> None:
    assert list(missing(call("code", "code_exec", answer))) == names


def test_arguments_have_a_shape() -> None:
    assert argument_shape(call("a", "b", "", row=1, path="x", rows=[1], deep={}, is_all=True, none=None)) == (
        "{deep: object, is_all: boolean, none: null, path: string, row: number, rows: array}"
    )
    broken = call("a", "b", "").model_copy(update={"arguments": "{row: 1"})
    assert argument_shape(broken) == "no JSON object"
