"""Answers by the content of their question."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

_NO_CONTENT = ("user", "metadata")
"""What says who asks, not what."""


def question_hash(body: Mapping[str, Any]) -> str:
    """Equal for equal questions; whoever wants another opinion sets another `seed`."""
    content = {name: value for name, value in body.items() if name not in _NO_CONTENT}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Cache[T]:
    """The answers last used."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str) -> T | None:
        """An answer that is kept."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: str, answer: T) -> None:
        """Keep an answer, and drop the one that was longest not asked for."""
        self._entries[key] = answer
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
