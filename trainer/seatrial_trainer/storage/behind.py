"""Work that is done behind the caller's back, in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property


class Behind:
    """One thread that does what it is given, one after the other, and nothing more after a failure.

    What comes later may rest on what came before: a manifest says that files are there.
    """

    def __init__(self) -> None:
        self._last: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Have `work` done after all that was given before."""
        before = self._last

        def after_success() -> None:
            if before is not None:
                before.result()
            work()

        self._last = self._thread.submit(after_success)

    def settle(self) -> None:
        """Wait until all is done.

        Raises:
            Exception: whatever the first failure raised.
        """
        if self._last is not None:
            self._last.result()

    def check(self) -> None:
        """Raise what went wrong so far, without waiting."""
        if self._last is not None and self._last.done():
            self._last.result()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="behind")
