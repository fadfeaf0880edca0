"""The slim trial fits the Harbor that is installed."""

import inspect
from importlib.metadata import requires, version

import pytest
from harbor.models.task.task import Task
from harbor.trial.single_step import SingleStepTrial
from packaging.requirements import Requirement

from seatrial_rollout.trials.slim_trial import SlimTask, SlimTrial

OWN = {"__init__", "record", "error", "is_verified_in_place"}


def test_every_overridden_method_exists_in_harbor_with_the_same_parameters() -> None:
    overridden = {
        name: member for name, member in vars(SlimTrial).items() if name not in OWN and inspect.isfunction(member)
    }
    assert len(overridden) >= 10
    for name, member in overridden.items():
        original = getattr(SingleStepTrial, name)
        assert list(inspect.signature(member).parameters) == list(inspect.signature(original).parameters), name
        assert inspect.iscoroutinefunction(member) == inspect.iscoroutinefunction(original), name


@pytest.mark.parametrize("name", ["_validate_input_paths", "_validate_tests"])
def test_the_tasks_own_checks_that_are_left_out_exist_in_harbor_with_the_same_parameters(name: str) -> None:
    parameters = inspect.signature(getattr(SlimTask, name)).parameters
    assert list(parameters) == list(inspect.signature(getattr(Task, name)).parameters)


def test_harbor_is_pinned_to_the_version_that_is_tested() -> None:
    requirements = [Requirement(text) for text in requires("seatrial-rollout") or []]
    (harbor,) = [requirement for requirement in requirements if requirement.name == "harbor"]
    assert str(harbor.specifier) == f"=={version('harbor')}"
