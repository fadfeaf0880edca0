"""Harnesses by name."""

import pytest
from harbor.utils.import_path import import_class

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.harness import BUILT_IN_HARNESSES
from seatrial_rollout.harness.registry import import_path


@pytest.mark.parametrize("name", BUILT_IN_HARNESSES)
def test_harbor_finds_our_harnesses_under_their_names(name: str) -> None:
    assert import_class(import_path(name), label="agent").name() == name


def test_a_class_of_the_users_own_is_passed_on() -> None:
    assert import_path("my.agents:Agent") == "my.agents:Agent"


@pytest.mark.parametrize("name", ["archipelagos", "my.agents:", ":Agent", ""])
def test_an_unknown_harness_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is unknown; use one of archipelago, .* or a class of your own"):
        import_path(name)
