"""What an attempt to break out of a sandbox is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.escapes.arena import Arena


class Category(StrEnum):
    """What an attempt is after."""

    ESCAPE = "Leaving the sandbox"
    THEFT = "Stealing secrets"
    NETWORK = "Reaching out"
    NEIGHBOUR = "Reaching other sandboxes"
    TOOLS = "Turning tools and transfers against their owner"
    EXHAUSTION = "Using up what others need"
    REWARD = "Tampering with the reward"


class Place(StrEnum):
    """Where attempts are made."""

    LOCAL = "local"
    """The local provider, in namespaces."""
    DAEMON = "sandboxd"
    """A `sandboxd` that is the first process of namespaces: what a container's would be, without its cgroup."""
    POD = "pod"
    """A sandbox pod on a real node, under the network policy of its world."""
    PLAIN = "plain"
    """The local provider where it has nothing but processes."""


ISOLATED = frozenset({Place.LOCAL, Place.DAEMON, Place.POD})
WITH_DAEMON = frozenset({Place.DAEMON, Place.POD})

type Act = Callable[["Arena"], Awaitable[str]]
"""What is done from outside, while the attempt's processes live on or once they are gone; `refused: ...` or not."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt.

    Its script is Python, run by the agent with `kit.py` before it. Script, act and aftermath each print a line
    `refused: <why>` or `got through: <what>`; every line must be a refusal for one of the reasons that are expected, so
    that an attempt which does not come to the point fails the suite too.
    """

    name: str
    """What the agent does, as a sentence's predicate."""
    category: Category
    script: str
    refusal: str
    """Regular expression of why it is refused: names of errors, or words of the script's."""
    answer: str
    """What stops it, for a person."""
    act: Act | None = None
    """Done from outside after the script, while what it left still runs."""
    aftermath: str = ""
    """Script in phase Verify, after the verifier has run."""
    judged: Act | None = None
    """Done from outside at the very end."""
    recorded: str = ""
    """Regular expression of what the audit says about it, as `kind path detail`; empty where it leaves nothing."""
    places: frozenset[Place] = ISOLATED
    plain: bool | None = None
    """Whether it is refused to plain processes too; false where it gets through, none where it is not tried there."""
