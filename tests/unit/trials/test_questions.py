"""Regression sets of questions: lines become tasks, and their verifier compares answers as people do."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.data import TaskSet
from seatrial_rollout.trials.tasks import TaskProblem, TaskRef, check_task_set, load_task_set

HLE = {"id": "h1", "question": "6 x 7?", "answer": "42", "answer_type": "exactMatch", "category": "Math", "image": ""}
GPQA = {
    "Record ID": "rec1",
    "Question": "Which is a metal?",
    "Correct Answer": "iron",
    "Incorrect Answer 1": "neon",
    "Incorrect Answer 2": "argon",
    "Incorrect Answer 3": "xenon",
    "High-level domain": "Chemistry",
}
CHOICES = {"id": "c1", "question": "Capital of France?", "choices": ["Rome", "Paris"], "answer": "B"}
QUESTIONS = TaskSet.model_validate({"source": {"path": "q.jsonl"}, "format": "Questions"})


def load(folder: Path, *records: dict[str, Any]) -> list[TaskRef | TaskProblem]:
    (folder / "q.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return check_task_set(QUESTIONS, folder, folder / "cache")


def grade(task: TaskRef, said: str, folder: Path) -> float:
    """What the task's verifier gives for a final answer."""
    for name in ("agent", "verifier"):
        (folder / "logs" / name).mkdir(parents=True, exist_ok=True)
    (folder / "logs/agent/final_answer.txt").write_text(said)
    environment = {"LOGS": str(folder / "logs"), "PATH": "/bin:/usr/bin"}
    subprocess.run(["sh", task.path / "tests/test.sh"], check=True, env=environment)
    return float((folder / "logs/verifier/reward.txt").read_text())


def test_every_shape_becomes_a_task_with_its_domain(tmp_path: Path) -> None:
    tasks = load(tmp_path, HLE, GPQA, CHOICES)
    assert all(isinstance(task, TaskRef) for task in tasks)
    named = {task.name: task for task in tasks if isinstance(task, TaskRef)}
    assert [(name, task.domain) for name, task in named.items()] == [
        ("c1", "default"),
        ("h1", "Math"),
        ("rec1", "Chemistry"),
    ]
    asked = (named["rec1"].path / "instruction.md").read_text()
    right = (named["rec1"].path / "tests/expected").read_text().strip()
    assert f"{right}) iron" in asked
    assert load(tmp_path, HLE, GPQA, CHOICES) == tasks, "in the same order always"


@pytest.mark.parametrize(
    ("record", "said", "reward"),
    [
        (HLE, "Six times seven.\nAnswer: 42", 1.0),
        (HLE, "Answer: 41\n\n**Answer:**  $42$.\n", 1.0),
        (HLE, "Answer: 42\nAnswer: 43", 0.0),
        (HLE, "It is 42", 0.0),
        (HLE, "", 0.0),
        (HLE | {"answer": "Charles de Gaulle"}, "answer: charles  DE gaulle", 1.0),
        (HLE | {"answer": "a.b"}, "Answer: aXb", 0.0),
        (CHOICES, "Answer: B", 1.0),
        (CHOICES, "Answer: (b) Paris", 1.0),
        (CHOICES, "Answer: B) Paris", 1.0),
        (CHOICES, "Answer: A", 0.0),
        (CHOICES, "Answer: Bern", 0.0),
        (HLE | {"answer_type": "multipleChoice", "answer": "D"}, "Answer: D.", 1.0),
    ],
)
def test_the_last_answer_counts_whatever_its_spacing_and_marks(
    tmp_path: Path, record: dict[str, Any], said: str, reward: float
) -> None:
    (task,) = load(tmp_path, record)
    assert isinstance(task, TaskRef)
    assert grade(task, said, tmp_path) == reward


def test_every_bad_line_is_named_with_the_way_out(tmp_path: Path) -> None:
    bad = [HLE | {"id": "pic", "image": "data:"}, CHOICES | {"answer": "Oslo"}, {"id": "x", "question": "?"}]
    load(tmp_path, HLE, *bad)
    with pytest.raises(InvalidInputError) as raised:
        load_task_set(QUESTIONS, tmp_path, tmp_path / "cache")
    text = str(raised.value)
    assert "3 of 4 tasks" in text
    assert "pic: image: the question shows a picture" in text
    assert "c1: answer: 'Oslo' is no choice; give a letter up to B, or a choice" in text
    assert "x: answer: Field required; correct this field" in text
    with pytest.raises(InvalidInputError, match=r"q\.jsonl:2: question 'h1' comes twice"):
        load(tmp_path, HLE, HLE)
