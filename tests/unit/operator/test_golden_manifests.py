"""What the operator makes of typical runs and worlds is what was last looked at: see `tests/golden_manifests.py`."""

import pytest

from tests.golden_manifests import FOLDER, texts

TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_made_is_what_the_golden_file_has(name: str) -> None:
    assert TEXTS[name]() == (FOLDER / f"{name}.yaml").read_text()


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(TEXTS)
