"""`seatrial eval`: what is asked for becomes a run of one Evaluate stage."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seatrial.evaluated_model import checkpoint_of, complete, named_model
from seatrial.evaluation import Question, evaluation_of
from seatrial.run_folders import evaluation_folder
from seatrial.summary import print_summary
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.model import Source
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_trainer.evaluation.summary import summarize
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage
from tests.manifests import run_manifest
from tests.trajectories import make_trajectory

MODEL = Source(path="model")


def run(**changes: Any) -> RLRun:
    return RLRun.model_validate(run_manifest(**changes))


def test_without_tasks_the_manifests_own_sets_are_measured() -> None:
    wanted = evaluation_of(run(), MODEL, Question(passes=4, temperatures=(1.0, 0.0), limit=3))
    data, (stage,) = wanted.spec.data, wanted.spec.stages
    assert wanted.metadata.name == "run-eval"
    assert (data.train, data.validation, data.regression) == (None, None, [])
    assert data.held_out is not None
    assert (data.held_out.source.path, data.held_out.limit) == ("held-out", 3)
    assert stage.evaluate is not None
    assert (stage.evaluate.passes, [one.temperature for one in stage.evaluate.sampling]) == (4, [1.0, 0.0])


def test_tasks_are_named_by_their_folder_or_by_the_caller_whatever_training_used(tmp_path: Path) -> None:
    for name in ("held_out", "Office Work", "shards"):
        (tmp_path / name).mkdir()
    (tmp_path / "shards/0.parquet").touch()
    paths = [f"{tmp_path}/held_out", f"{tmp_path}/Office Work", f"old={tmp_path}/shards"]
    data = evaluation_of(run(), MODEL, Question(paths)).spec.data
    assert data.held_out is not None
    assert data.held_out.source.path == f"{tmp_path}/held_out"
    assert [(one.name, one.tasks.format) for one in data.regression] == [
        ("office-work", "Directories"),
        ("old", "Parquet"),
    ]


@pytest.mark.parametrize(
    ("changes", "question", "complaint"),
    [
        ({}, Question(["nowhere"]), "--tasks nowhere: .*does not exist"),
        ({}, Question(harnesses=["mine"]), "neither a harness of ours nor module:Class"),
        ({"spec__stages": [{"name": "t", "train": {"steps": 1}}], "spec__data__heldOut": None}, Question(), "--tasks"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], question: Question, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        evaluation_of(run(**changes), MODEL, question)


def write_model(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(str(folder))
    return folder


def train(folder: Path) -> RLRun:
    """A run that left two checkpoints, the first of them the better one."""
    folder.mkdir()
    trained = run(spec__storage={"path": str(folder.parent)})
    request = DriverRequest(run=trained, base_dir=folder, stages=["train"])
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True))
    checkpoints = RunStorage(folder).stage("train").checkpoints
    for version, score in ((5, 0.9), (10, 0.2)):
        with checkpoints.writing(version, {}) as inside:
            write_model(inside / "model", "config.json", "model.safetensors")
        checkpoints.score(version, score)
    return trained


def test_a_checkpoint_is_chosen_by_its_validation_and_lent_the_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = train(folder)
    best, last = checkpoint_of(trained, "Best", folder), checkpoint_of(trained, "Last", folder)
    assert best is not None
    assert last is not None
    assert (best.parent.name, last.parent.name) == ("000005", "000010")
    assert checkpoint_of(trained, "Initial", folder) is None
    assert named_model(str(best.parent)) == best, "the folder of a checkpoint will do"
    base = write_model(tmp_path / "base", "config.json", "model.safetensors", "tokenizer.json")
    whole = tmp_path / "out/model"
    for _ in range(2):  # a resumed evaluation makes it again
        assert complete(best, base, whole) == Source(path=str(whole))
    origin = {file.name: file.resolve().parent for file in whole.iterdir()}
    assert origin == {"config.json": best, "model.safetensors": best, "tokenizer.json": base}
    with pytest.raises(InvalidInputError, match=r"evaluates .*000005/model, not .*000010/model; choose another --out"):
        complete(last, base, whole)


def test_a_model_is_a_folder_or_a_repository(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole", "config.json", "model.safetensors", "tokenizer.json")
    assert named_model(str(whole)) == Source(path=str(whole))
    hub = named_model("Qwen/Qwen3-0.6B@v1")
    assert isinstance(hub, Source)
    assert hub.hf is not None
    assert (hub.hf.repo, hub.hf.revision) == ("Qwen/Qwen3-0.6B", "v1")
    with pytest.raises(InvalidInputError, match="there is no such folder"):
        named_model(str(tmp_path / "gone"))


def test_what_is_in_a_folder_is_gone_on_with_only_when_asked(tmp_path: Path) -> None:
    folder = evaluation_folder(run(), tmp_path / "out", resume=False)
    with pytest.raises(InvalidInputError, match="no evaluation was begun there"):
        evaluation_folder(run(), folder, resume=True)
    (folder / REQUEST_FILE).write_text("{}")
    with pytest.raises(InvalidInputError, match="is not empty; go on with what is there by --resume"):
        evaluation_folder(run(), folder, resume=False)
    assert evaluation_folder(run(), folder, resume=True) == folder


def test_a_single_evaluation_is_shown_in_full() -> None:
    tries = [make_trajectory(f"{n}", task=f"t{n % 2}", reward=n % 3 / 2) for n in range(4)]
    result = summarize("held-out T=1", "archipelago", tries)
    report = StageReport(stage="evaluate", kind="Evaluate", result=StageResult.PASSED, evaluations=[result])
    text = io.StringIO()
    print_summary([report], Console(file=text, width=160))
    for shown in ("pass@1", "pass@2", "25.0%", "sheets_lookup", "tokens a turn", "share of code", "4 Completed"):
        assert shown in text.getvalue()
