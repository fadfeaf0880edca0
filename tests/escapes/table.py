"""Every attempt: this is the suite."""

from collections.abc import Sequence

from tests.escapes import exhaustion, leaving, neighbours, network, reward, theft, tools
from tests.escapes.attempt import Attempt, Place

ATTEMPTS: Sequence[Attempt] = [
    attempt for part in (leaving, theft, network, neighbours, exhaustion, tools, reward) for attempt in part.ATTEMPTS
]
"""In the order in which they are made: what is to live on until verification comes last."""


def attempts_of(place: Place) -> list[Attempt]:
    """What is tried at a place."""
    if place is Place.PLAIN:
        return [attempt for attempt in ATTEMPTS if attempt.plain is not None]
    return [attempt for attempt in ATTEMPTS if place in attempt.places]
