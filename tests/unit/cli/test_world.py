import re
from pathlib import Path

import pytest

from seatrial.world import load_world
from seatrial_api.errors import InvalidInputError

WORLD = """\
apiVersion: seatrial.dev/v1alpha1
kind: WorldImage
metadata: {{name: {name}}}
spec:
  image: registry.test/office:v1
  inspection: {inspection}
"""
ASKED = "{tasks: {source: {path: tasks}}, repeats: 2}"


def write(folder: Path, *worlds: tuple[str, str]) -> Path:
    path = folder / "world.yaml"
    path.write_text("---\n".join(WORLD.format(name=name, inspection=inspection) for name, inspection in worlds))
    return path


def test_the_world_that_is_named_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, ("office", ASKED), ("shop", ASKED.replace("2", "5")))
    world, inspection = load_world(path, "shop")
    assert (world.metadata.name, inspection.repeats) == ("shop", 5)


@pytest.mark.parametrize(
    ("worlds", "name", "told"),
    [
        ([("office", "null")], "", "spec.inspection of WorldImage office is empty; give it tasks"),
        ([("office", ASKED), ("shop", ASKED)], "", "holds 2 WorldImages and must hold one; choose with --name"),
        ([("office", ASKED)], "shop", "holds 0 WorldImages named shop"),
        ([("office", "{repeats: 2}")], "", "spec.inspection"),
    ],
)
def test_a_file_that_does_not_say_what_to_inspect_is_refused(
    tmp_path: Path, worlds: list[tuple[str, str]], name: str, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(told)):
        load_world(write(tmp_path, *worlds), name)
