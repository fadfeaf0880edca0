from pathlib import Path
from typing import Any

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import Source
from seatrial_rollout.engine.model_files import find_model


def model_folder(folder: Path) -> Path:
    """What looks like a model."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    return folder


def test_a_model_is_found_below_the_base_folder_or_at_its_absolute_path(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert find_model(Source(path="model"), tmp_path) == folder
    assert find_model(Source(path=str(folder)), Path("/")) == folder


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"path": "none"}, "none does not exist"),
        ({"pvc": {"claim": "models", "path": "qwen"}}, "/seatrial/pvc/models/qwen does not exist"),
        (
            {"hf": {"repo": "nobody/nothing-of-this-name"}},
            "nothing-of-this-name@main is neither in the local",
        ),
    ],
)
def test_a_model_that_is_not_there_is_told(
    tmp_path: Path, source: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInputError, match=words):
        find_model(Source.model_validate(source), tmp_path)


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InvalidInputError, match=r"holds no config\.json with safetensors"):
        find_model(Source(path="model"), tmp_path)
