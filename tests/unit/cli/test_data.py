import re
from pathlib import Path

import pytest
from rich.console import Console

from seatrial.data import contaminated, duplicates, print_data, summarize_data
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from tests.trial_tasks import write_trial_task

RUN = {
    "apiVersion": "seatrial.dev/v1alpha1",
    "kind": "RLRun",
    "metadata": {"name": "office"},
    "spec": {
        "model": {"source": {"path": "policy"}, "contextLength": {"train": 512}},
        "data": {
            "train": {"source": {"path": "train"}},
            "heldOut": {"source": {"path": "held_out"}},
            "regression": [{"name": "old", "tasks": {"source": {"path": "old"}}}],
        },
        "stages": [{"name": "train", "train": {"steps": 2, "validateEverySteps": 0}}],
    },
}


def test_sets_are_counted_and_what_is_wrong_with_them_is_named(tmp_path: Path) -> None:
    write_trial_task(tmp_path / "train/a", config='[metadata]\ndomain = "finance"')
    write_trial_task(tmp_path / "train/b", files={"instruction.md": "Do b."})
    (tmp_path / "train/b/solution/solve.sh").unlink()
    write_trial_task(tmp_path / "train/c", files={"instruction.md": "Do c."})
    (tmp_path / "train/c/tests/test.sh").unlink()
    write_trial_task(tmp_path / "held_out/a")
    (tmp_path / "held_out/a/task.toml").write_text('schema_version = "1.4"\n[metadata]\nworld = "acme"')
    write_trial_task(tmp_path / "old/x", files={"instruction.md": "Do x.", "environment/files/big.txt": "x" * 5000})
    train, held_out, old = found = summarize_data(RLRun.model_validate(RUN), tmp_path)
    assert (train.name, held_out.name, old.name) == ("train", "heldOut", "old")
    assert (train.domains, train.without_solution) == ({"finance": 1, "default": 1}, 1)
    assert [problem.task for problem in train.problems] == ["c"]
    assert old.sizes["x"] > 5000
    assert duplicates(found) == [["train/a", "heldOut/a"]]
    console = Console(width=200, record=True)
    print_data(found, console)
    text = console.export_text()
    assert "train/c: has no tests/test.sh, the verifier" in text
    assert "train/a = heldOut/a" in text
    assert re.search(r"│ acme +│ +1 │", text)


def test_training_tasks_that_share_words_with_a_measured_one_are_named(tmp_path: Path) -> None:
    question = "Sum the invoices of May and write the total"
    write_trial_task(tmp_path / "train/a", files={"instruction.md": f"{question}, please."})
    write_trial_task(tmp_path / "train/b", files={"instruction.md": "Sum the invoices of June."})
    write_trial_task(tmp_path / "held_out/c", files={"instruction.md": question.upper()})
    write_trial_task(tmp_path / "old/x", files={"instruction.md": "Do x."})
    found = summarize_data(RLRun.model_validate(RUN), tmp_path)
    assert contaminated(found, 9) == ['train/a and heldOut/c: "sum the invoices of may and write the total"']
    assert contaminated(found, 10) == []


def test_a_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"source\.path .*train does not exist"):
        summarize_data(RLRun.model_validate(RUN), tmp_path)
