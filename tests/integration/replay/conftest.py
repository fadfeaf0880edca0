"""A policy's tokenizer for agents that follow a script."""

from pathlib import Path

import pytest

from tests.chat_models import FAMILIES, write_model
from tests.trial_tasks import write_trial_task


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(FAMILIES["hermes"], tmp_path_factory.mktemp("policy"))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task with something in its world to read, move and add to."""
    prices = "item,price\nlamp,7\nchair,12\n"
    return write_trial_task(
        tmp_path / "task",
        servers=("filesystem", "sheets", "code"),
        files={"environment/files/prices.csv": prices, "environment/files/deep/er/bulk": "x" * 100_000},
    )
