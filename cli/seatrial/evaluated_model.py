"""Which model `seatrial eval` measures: one of the manifest's run, a folder, or one of the Hugging Face hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seatrial.run_folders import kept_in, latest_run_folder
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.model import HuggingFaceSource, Source
from seatrial_trainer.storage.checkpoints import MANIFEST_FILE, Checkpoint, CheckpointStore
from seatrial_trainer.storage.run_storage import RunStorage, read_request

Which = Literal["Initial", "Best", "Last"]

_REPOSITORY = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>\S+))?")
_OWN_FILES = re.compile(r".*\.safetensors(\.index\.json)?|config\.json|generation_config\.json")
"""What belongs to weights; a checkpoint has these alone, and takes its tokenizer from what it was trained from."""


def checkpoint_of(run: RLRun, which: Which, folder: Path | None) -> Path | None:
    """Weights of a checkpoint of the manifest's run; None for the model that it starts from.

    Args:
        run: The manifest's.
        which: Which weights.
        folder: Folder of the run; the latest one if none.

    Raises:
        InvalidInputError: if the run has no such checkpoint.
    """
    if which == "Initial":
        return None
    folder = folder or latest_run_folder(run)
    started = read_request(folder)
    storage = RunStorage.open(folder, started.kept_in or kept_in(run, folder))
    trained = [stage.name for stage in started.run.spec.stages if stage.train]
    for checkpoint in (storage.stage(name).checkpoints.choose(which) for name in reversed(trained)):
        if checkpoint:
            return checkpoint.model
    raise InvalidInputError(f"{folder}: no Train stage left a checkpoint; evaluate Initial, or another run with --run")


def named_model(text: str) -> Source | Path:
    """What `--model` names: a whole model, or the folder of weights without a tokenizer that a checkpoint is.

    Raises:
        InvalidInputError: if it is neither a folder with weights nor the name of a repository, or the checkpoint is
            damaged.
    """
    folder = Path(text)
    if (folder / MANIFEST_FILE).exists():
        return _open(folder.absolute()).model
    if folder.is_dir():
        if not (folder / "config.json").exists() or not list(folder.glob("*.safetensors")):
            raise InvalidInputError(f"--model {text}: holds no config.json with safetensors beside it")
        return Source(path=str(folder.absolute())) if (folder / "tokenizer.json").exists() else folder.absolute()
    if found := _REPOSITORY.fullmatch(text):
        return Source(hf=HuggingFaceSource(repo=found["repo"], revision=found["revision"] or "main"))
    raise InvalidInputError(f"--model {text}: there is no such folder, and OWNER/NAME[@REVISION] names a repository")


def complete(weights: Path, base: Path, target: Path) -> Source:
    """Make a whole model of weights, by links to them and to the tokenizer of what they were trained from.

    Args:
        weights: Folder with weights and config.
        base: Folder of the model that training started from.
        target: Folder to make; the same one is made again for a resumed evaluation.

    Raises:
        InvalidInputError: if the target holds other weights.
    """
    files = dict(_files(weights, base))
    target.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        link = target / name
        if not link.is_symlink():
            link.symlink_to(file)
        elif link.readlink() != file:
            raise InvalidInputError(
                f"{target} evaluates {link.readlink().parent}, not {file.parent}; choose another --out"
            )
    return Source(path=str(target))


def _files(weights: Path, base: Path) -> Iterator[tuple[str, Path]]:
    yield from ((file.name, file.resolve()) for file in base.iterdir() if not _OWN_FILES.fullmatch(file.name))
    yield from ((file.name, file.resolve()) for file in weights.iterdir())


def _open(folder: Path) -> Checkpoint:
    return CheckpointStore(folder.parent).open(int(folder.name))
