"""The operator's settings: one file, each mistake named."""

from pathlib import Path

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_operator.config import CONFIG_VARIABLE, OperatorConfig, load_config


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "operator.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "operator.yaml") == OperatorConfig()


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("pollSeconds: 2\nstorage: {pvc: {claim: runs}}\n")
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    config = load_config()
    assert config.poll_seconds == 2
    assert config.storage is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("workers: [", "while parsing"),
        ("workerz: 3", "workerz"),
        ("lease: {renewSeconds: 20}", "retrySeconds 2 < renewSeconds 20 < durationSeconds 15 must hold"),
    ],
)
def test_a_mistake_is_named_with_the_file(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "operator.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=words) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
