"""Whatever is wrong with what a command was given, it answers with one sentence and code 2."""

import shutil
import sys
from pathlib import Path

import pytest

from seatrial.main import main
from seatrial_api.playbook import ExitCode
from seatrial_trainer.storage.run_storage import REQUEST_FILE

RUN = Path(__file__).parents[3] / "examples/quickstart/run.yaml"
FILES = {
    "empty.yaml": "",
    "text.yaml": "just text",
    "broken.yaml": "a: [1\n",
    "config-map.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
    "unknown-field.yaml": "apiVersion: seatrial.dev/v1alpha1\nkind: RLRun\nmetadata: {name: x}\nspec: {nonsense: 1}\n",
    "list.json": "[]",
    f"damaged/{REQUEST_FILE}": "{",
}
COMMANDS = ("run", "eval", "validate", "plan", "status", "report", "traces", "data inspect", "world inspect")
MANIFESTS = {
    "missing.yaml": "missing.yaml:1: cannot be read: No such file or directory",
    "empty.yaml": "empty.yaml:1: is empty",
    "text.yaml": "text.yaml:1: must be a mapping",
    "broken.yaml": "broken.yaml:2: not readable as YAML",
    "config-map.yaml": "holds 0",
    "unknown-field.yaml": "unknown-field.yaml:4: spec.nonsense: is unknown",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commands are given: it holds everything that can be wrong."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(RUN, tmp_path / "run.yaml")
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")


def refused(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends with code 2."""
    monkeypatch.setattr(sys, "argv", ["seatrial", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == ExitCode.INVALID, said
    return said.out + said.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_manifest_that_cannot_be_is_refused_by_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for manifest, sentence in MANIFESTS.items():
        if (command, manifest) != ("validate", "config-map.yaml"):  # what is not ours is passed over there
            assert sentence in refused(f"{command} {manifest}", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("status run.yaml", "there is no run of quickstart"),
        ("status run.yaml --run missing", "missing holds no run: there is no run.json"),
        ("traces run.yaml --run nothing", "nothing holds no run: there is no run.json"),
        ("report run.yaml --run nothing", "nothing holds no run: there is no run.json"),
        ("report run.yaml --run damaged", "damaged/run.json is damaged: Invalid JSON"),
        ("eval run.yaml --checkpoint Best --run damaged", "damaged/run.json is damaged: Invalid JSON"),
        ("traces run.yaml --outcome Nonsense", "'Nonsense' is not one of 'Completed'"),
        ("traces run.yaml --finding Nonsense", "'Nonsense' is not one of"),
        ("eval run.yaml --tasks new=", "--tasks new=: must be PATH or NAME=PATH"),
        ("eval run.yaml --tasks missing", "does not exist"),
        ("eval run.yaml --model missing", "--model missing: there is no such folder"),
        ("eval run.yaml --model nothing", "--model nothing: holds no config.json with safetensors beside it"),
        ("eval run.yaml --against nothing", "nothing has no trials.parquet"),
        ("plan run.yaml --model-config missing.json", "--model-config missing.json: No such file or directory"),
        ("plan run.yaml --model-config empty.yaml", "--model-config empty.yaml: is not JSON"),
        ("plan run.yaml --model-config list.json", "--model-config list.json: must be an object"),
        ("plan run.yaml --gpu-memory-gib 0", "greater than or equal to 1"),
        ("world build missing out.tar", "missing is not a folder"),
        ("world build nothing nothing", "nothing is a folder; name the archive"),
        ("world build nothing out.tar --workdir relative", "--workdir relative must begin with /"),
        ("world push empty.yaml registry.test/world:1", "empty.yaml is not an OCI archive"),
    ],
)
def test_what_an_option_names_is_looked_at_first(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(words, monkeypatch, capsys)
