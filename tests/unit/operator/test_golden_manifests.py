"""What the operator makes of typical runs is what was last looked at: see `tests/golden_manifests.py`."""

import pytest

from seatrial_api.rlrun import RLRun
from seatrial_operator.config import OperatorConfig
from tests.golden_manifests import FOLDER, cases, rendered

CASES = list(cases())


@pytest.mark.parametrize(("name", "run", "segments", "config"), CASES, ids=[name for name, *_ in CASES])
def test_a_run_s_objects_are_those_of_the_golden_file(
    name: str, run: RLRun, segments: tuple[int, ...], config: OperatorConfig
) -> None:
    assert rendered(run, segments, config) == (FOLDER / f"{name}.yaml").read_text()


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {name for name, *_ in CASES}
