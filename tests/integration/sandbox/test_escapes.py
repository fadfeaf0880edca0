"""Every attempt of the table, in the sandboxes that this machine can have."""

import asyncio
import re
from pathlib import Path

import pytest

from seatrial_rollout.environment.isolation import Means
from tests.escapes.arena import Match, play
from tests.escapes.attempt import Attempt, Place
from tests.escapes.places import daemon_arena, local_arena, outside
from tests.escapes.table import ATTEMPTS, attempts_of
from tests.sandbox_daemons import means, no_isolation


class Matches:
    """What became of all attempts at a place: they are made once, when the first test asks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[Place, Match | Exception] = {}

    def at(self, place: Place) -> Match:
        """The match at a place, or why there is none."""
        if place is not Place.PLAIN and means() is Means.PLAIN:
            pytest.skip(no_isolation())
        if place not in self._ended:
            (self._folder / place).mkdir()
            try:
                self._ended[place] = asyncio.run(_played(place, self._folder / place))
            except Exception as exc:  # noqa: BLE001  every test of the place tells it
                self._ended[place] = exc
        ended = self._ended[place]
        if isinstance(ended, Exception):
            raise ended
        return ended


async def _played(place: Place, folder: Path) -> Match:
    with outside() as there:
        arena = daemon_arena(folder, there) if place is Place.DAEMON else local_arena(place, folder, there)
        async with arena as ready:
            return await play(ready, attempts_of(place))


@pytest.fixture(scope="module")
def matches(tmp_path_factory: pytest.TempPathFactory) -> Matches:
    """One for all tests here."""
    return Matches(tmp_path_factory.mktemp("escapes"))


def _cases(*places: Place) -> list[object]:
    return [
        pytest.param(place, attempt, id=f"{place}-{attempt.name}") for place in places for attempt in attempts_of(place)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("place", "attempt"), _cases(Place.LOCAL, Place.DAEMON))
def test_an_agent_that(place: Place, attempt: Attempt, matches: Matches) -> None:
    matches.at(place).check(attempt)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("place", "attempt"), _cases(Place.PLAIN))
def test_without_namespaces_an_agent_that(place: Place, attempt: Attempt, matches: Matches) -> None:
    match = matches.at(place)
    if attempt.plain:
        match.check(attempt)
    else:  # which also shows that the attempt is one
        assert re.search("^got through", match.attempts[attempt.name].said, re.MULTILINE)


@pytest.mark.parametrize("place", [Place.LOCAL, Place.DAEMON])
def test_nothing_lies_where_the_tests_come_to(place: Place, matches: Matches) -> None:
    assert matches.at(place).found_before_tests == ""


def test_the_table_is_a_table() -> None:
    names = [attempt.name for attempt in ATTEMPTS]
    assert len(set(names)) == len(names) >= 40
