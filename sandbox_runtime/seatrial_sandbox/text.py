"""Text that fits a byte budget: the head and the tail are kept, and the cut is announced."""


class HeadTail:
    """Collects bytes without end in bounded memory: the first two thirds and the last third of a budget."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes * 2 // 3
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Take more bytes."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:  # trimmed now and then, so that a byte is moved at most twice
            self._trim()

    def text(self, advice: str = "") -> str:
        """What was kept as text; bytes that are not UTF-8 become U+FFFD.

        Args:
            advice: How to get at what was cut, put where the cut is.
        """
        self._trim()
        head = self._head.decode(errors="replace")
        tail = self._tail.decode(errors="replace")
        if not self._dropped:
            return (self._head + self._tail).decode(errors="replace")
        return f"{head}\n[... {self._dropped} bytes left out{advice and '; ' + advice} ...]\n{tail}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess


def printable(text: str) -> str:
    """Text that can be sent and stored: what is no UTF-8 in a name is shown escaped."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def cut(text: str, max_bytes: int, advice: str = "") -> str:
    """The text, without its middle if it is longer than the budget.

    Args:
        text: Any text.
        max_bytes: Budget in bytes of UTF-8.
        advice: How to get at what was cut.
    """
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return text
    kept = HeadTail(max_bytes)
    kept.write(data)
    return kept.text(advice)
