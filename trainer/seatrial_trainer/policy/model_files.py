"""The weights of a Hugging Face model directory, read one at a time."""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from safetensors import safe_open
from torch import Tensor

from seatrial_api.errors import InvalidInputError


class ModelFiles:
    """The safetensors of a model directory, opened as they are needed."""

    def __init__(self, directory: Path) -> None:
        index = directory / "model.safetensors.index.json"
        if index.exists():
            self._file_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            with safe_open(directory / "model.safetensors", framework="pt") as file:
                self._file_of = dict.fromkeys(file.keys(), "model.safetensors")
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> Collection[str]:
        """Of all weights."""
        return self._file_of.keys()

    def read(self, name: str, expert: int | None = None) -> Tensor:
        """One weight, or what it holds of one expert; no more than that is read.

        Raises:
            InvalidInputError: the directory has no such weight.
        """
        if name not in self._file_of:
            raise InvalidInputError(f"model {self._directory} has no weight {name}")
        file = self._file_of[name]
        if file not in self._open:
            self._open[file] = self._stack.enter_context(safe_open(self._directory / file, framework="pt"))
        opened = self._open[file]
        tensor: Tensor = opened.get_tensor(name) if expert is None else opened.get_slice(name)[expert]
        return tensor


def weights_like(patterns: Collection[str], directory: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model directory in whose names one of the patterns is found, as they are there."""
    with ModelFiles(directory) as files:
        for name in files.names:
            if any(re.search(pattern, name) for pattern in patterns):
                yield name, files.read(name)
