from pathlib import Path

import pytest

from seatrial_rollout.inspection.contamination import find_contamination
from seatrial_rollout.inspection.leaks import find_leaks
from tests.trial_tasks import write_trial_task

SOLUTION = "#!/bin/sh\nset -euo pipefail\npaste -sd+ prices.txt | bc > /workspace/total.txt\n"


def test_a_task_that_keeps_its_answer_to_itself_has_no_leaks(tmp_path: Path) -> None:
    files = {
        "solution/solve.sh": SOLUTION,
        "environment/files/prices.txt": "17\n25\n",
        "tests/expected.txt": "the total is 42\n",
        "instruction.md": "Add the prices up and write total.txt.",
    }
    assert list(find_leaks(write_trial_task(tmp_path / "task", files=files))) == []


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"environment/files/tools/solve.sh": "echo hello"}, "the world holds environment/files/tools/solve.sh"),
        ({"environment/files/notes.md": f"run this:\n{SOLUTION}"}, "environment/files/notes.md has a line of solution"),
        ({"instruction.md": SOLUTION.splitlines()[2]}, "instruction.md has a line of solution/solve.sh"),
        (
            {"tests/expected.csv": "a,b\n1,2\n3,4,5,6\n", "environment/files/old/out.csv": "a,b\n1,2\n3,4,5,6\n"},
            "tests/expected.csv is also environment/files/old/out.csv",
        ),
    ],
)
def test_what_gives_the_answer_away_is_named(tmp_path: Path, files: dict[str, str], told: str) -> None:
    task = write_trial_task(tmp_path / "task", files={"solution/solve.sh": SOLUTION, **files})
    (leak,) = find_leaks(task)
    assert leak.startswith(told)


def test_what_an_agent_has_to_look_up_is_no_leak(tmp_path: Path) -> None:
    files = {
        "solution/solve.sh": "#!/bin/sh\necho 1,204.50 > answer.txt\n",
        "environment/files/prices.csv": "Widget,1,204.50\n",
        "tests/expected.txt": "1,204.50\n",
    }
    assert list(find_leaks(write_trial_task(tmp_path / "task", files=files))) == []


def test_a_long_run_of_words_is_found_whatever_stands_between_them() -> None:
    instructions = {
        "copied": "Please sort: the QUICK brown fox -- jumps over the lazy dog, twice.",
        "own": "Add the prices of all foxes and dogs up.",
    }
    corpora = [("train/1", "nothing here"), ("train/2", "so the quick brown fox jumps over the lazy dog sleeps")]
    assert find_contamination(instructions, corpora, 8) == {
        "copied": ("train/2", "the quick brown fox jumps over the lazy")
    }
    assert find_contamination(instructions, corpora, 10) == {}
