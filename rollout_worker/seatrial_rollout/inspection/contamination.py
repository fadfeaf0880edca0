"""Whether instructions share long runs of words with given texts, as a task does that was copied from them.

The measure is the one of GPT-3's appendix C (Brown et al. 2020, arXiv:2005.14165): n-grams of lowercased words without
punctuation, 13 of them there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

_WORD = re.compile(r"\w+")


def ngrams(text: str, n: int) -> Iterator[tuple[str, ...]]:
    """Every run of `n` words."""
    words = _WORD.findall(text.casefold())
    return (tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def find_contamination(
    instructions: Mapping[str, str], corpora: Iterable[tuple[str, str]], n: int
) -> dict[str, tuple[str, str]]:
    """For each task that shares a run of words with a corpus, where and which.

    Args:
        instructions: Instruction by task; kept in memory as n-grams, while corpora are read one text at a time.
        corpora: Name and text of what tasks must not have come from.
        n: Length of a run in words.
    """
    tasks: dict[tuple[str, ...], list[str]] = {}
    for task, text in instructions.items():
        for run in ngrams(text, n):
            tasks.setdefault(run, []).append(task)
    found: dict[str, tuple[str, str]] = {}
    for name, text in corpora:
        for run in ngrams(text, n):
            for task in tasks.get(run, ()):
                found.setdefault(task, (name, " ".join(run)))
    return found
