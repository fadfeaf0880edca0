"""`seatrial validate`: every problem of every file at once."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from seatrial.manifest import Manifest, Problem, read_manifest
from seatrial_api.playbook import ExitCode


def validate(paths: Sequence[Path], overrides: Sequence[str] = ()) -> list[Manifest]:
    """Read files as far as they can be read; see each one's `problems`. Never raises for bad input."""
    return [read_manifest(path, overrides) for path in paths]


def exit_code(manifests: Sequence[Manifest]) -> ExitCode:
    """`INVALID` if any file has a problem."""
    return ExitCode.INVALID if any(manifest.problems for manifest in manifests) else ExitCode.PASSED


def render(manifests: Sequence[Manifest]) -> RenderableType:
    """A line for each problem, and one for each file without."""
    return Group(*(line for manifest in manifests for line in _lines(manifest)))


def print_validation(manifests: Sequence[Manifest], console: Console) -> None:
    """Print without breaking lines, so that editors and grep find `file:line`."""
    console.print(render(manifests), soft_wrap=True, highlight=False)


def _lines(manifest: Manifest) -> list[Text]:
    if manifest.problems:
        return [_line(problem) for problem in manifest.problems]
    names = ", ".join(f"{type(item).__name__} {getattr(item, 'metadata').name}" for item in manifest.objects)  # noqa: B009  all kinds have it, their base has not
    return [Text.assemble(("✓ ", "green"), f"{manifest.path}: {names or 'nothing of ours in it'}")]


def _line(problem: Problem) -> Text:
    found = f"; found {problem.value}" if problem.value is not None else ""
    field = f"{problem.field}: " if problem.field else ""
    return Text.assemble((f"{problem.place}: ", "dim"), (field, "bold red"), problem.message, (found, "yellow"))
