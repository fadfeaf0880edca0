"""A field that a launcher cannot honour, and how tables of them are read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import override

from seatrial_api.rlrun import RLRunSpec


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that a launcher cannot honour."""

    path: str
    """The field: `spec.trainer.backend`."""
    message: str
    """What it asks for, and the way out."""

    @override
    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


type Row = tuple[str, Callable[[RLRunSpec], bool], str]
"""A field, whether a spec asks for what cannot be, and the sentence."""


def asked_for(rows: Iterable[Row], spec: RLRunSpec) -> Iterator[Refusal]:
    """A refusal for each row that `spec` asks for."""
    return (Refusal(path, message) for path, asks, message in rows if asks(spec))
