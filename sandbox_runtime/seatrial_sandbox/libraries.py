"""Loading the libraries that read office files: late, since most processes never need them, and without numpy."""

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def load(names: Iterable[str]) -> None:
    """Load libraries now, for children that will share them."""
    with _without_numpy():
        for name in names:
            importlib.import_module(name)


@contextmanager
def _without_numpy() -> Iterator[None]:
    """Around imports that would load numpy for nothing, at the price of threads and of much memory."""
    missing = object()
    numpy = sys.modules.get("numpy", missing)
    if numpy is missing:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # how Python marks what cannot be imported
    try:
        yield
    finally:
        if numpy is missing:
            del sys.modules["numpy"]
