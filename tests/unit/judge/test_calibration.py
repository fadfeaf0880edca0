"""A judge's verdicts against human labels."""

from pathlib import Path

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.judge.calibration import Calibration, Pair, calibrate, main, read_pairs


def test_kappa_is_agreement_beyond_chance() -> None:
    """The example of Cohen's coefficient in most textbooks: 20 and 15 alike of 50, kappa 0.4."""
    found = Calibration(both_pass=20, both_fail=15, only_judge_passes=10, only_human_passes=5)
    assert found.agreement == 0.7
    assert found.kappa == pytest.approx(0.4)


def test_the_interval_of_the_agreement_is_wilsons() -> None:
    low, high = Calibration(both_pass=8, both_fail=0, only_judge_passes=2, only_human_passes=0).agreement_interval
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


def test_a_judge_that_always_says_the_same_as_everybody_tells_nothing() -> None:
    found = Calibration.of([Pair(human=True, judge=True)] * 5)
    assert (found.agreement, found.kappa) == (1.0, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.csv", "criterion,human,judge\na,1,1\na,0,true\nb,Passed,pass\n"),
        (
            "labels.jsonl",
            (
                '{"criterion": "a", "human": true, "judge": 1}\n\n{"criterion": "a", "human": 0, "judge": true}\n'
                '{"criterion": "b", "human": "passed", "judge": "yes"}\n'
            ),
        ),
    ],
)
def test_labels_are_read_from_csv_and_json_lines(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    rows = calibrate(read_pairs(tmp_path / name))
    assert [(row, found.count, found.only_judge_passes) for row, found in rows.items()] == [
        ("all", 3, 1),
        ("a", 2, 1),
        ("b", 1, 0),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("human,judge\n1,maybe\n", "label 1: judge is 'maybe'; write 1 or 0"),
        ("human\n1\n", "label 1: judge is ''"),
        ("human,judge\n", "has no labels"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_line(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(content)
    with pytest.raises(InvalidInputError) as caught:
        read_pairs(file)
    assert words in str(caught.value)
    assert main([str(file)]) == 2
    assert words in capsys.readouterr().err


def test_the_figures_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("human,judge\n1,1\n0,0\n0,1\n1,1\n")
    assert main([str(file)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["all", "4", "0.750", "0.301", "-", "0.954", "0.50", "1", "0"]
