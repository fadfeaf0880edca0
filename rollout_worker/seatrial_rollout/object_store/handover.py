"""How one process of a run gets the files that another one wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SharedFolder:
    """The run's folder where every process sees it: one machine, or a volume in all pods. Nothing has to be done."""

    @contextmanager
    def sending(self, folder: Path) -> Iterator[Path]:
        """Yield a folder to fill; when the block ends, its files can be had as `folder`.

        Raises:
            StoreUnavailableError: if they go through an object store that does not answer; so do all methods.
        """
        yield folder

    @contextmanager
    def bringing(self, folder: Path) -> Iterator[Path]:
        """Yield a folder to read with what another process wrote as `folder`; it may be gone when the block ends."""
        yield folder

    def bring(self, folder: Path) -> None:
        """Have here, for as long as this process lives, what another one wrote as `folder` and never changes."""

    def collect(self, folder: Path) -> None:
        """Have here, and only here, what others sent as `folder`."""


SHARED_FOLDER = SharedFolder()
