"""`seatrial world inspect`: what a WorldImage's own tasks, verifiers and tools say about it, tried on this machine."""

from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from seatrial.manifest import ManifestError, read_manifest
from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.world_image import Inspection, WorldImage
from seatrial_rollout.inspection.faults import InspectionReport
from seatrial_rollout.inspection.inspecting import inspect_world, write_report


def load_world(path: Path, name: str) -> tuple[WorldImage, Inspection]:
    """The WorldImage of a file that is to be inspected.

    Args:
        path: The file; other objects may stand beside it.
        name: Which one, where there are several.

    Raises:
        InvalidInputError: if the file is not valid, or there is not one such world that says what to inspect.
    """
    manifest = read_manifest(path)
    if manifest.problems:
        raise ManifestError(manifest.problems)
    worlds = [one for one in manifest.objects if isinstance(one, WorldImage) and name in {"", one.metadata.name}]
    if len(worlds) != 1:
        named = f" named {name}" if name else ""
        choose = "; choose with --name" if len(worlds) > 1 else ""
        raise InvalidInputError(f"{path} holds {len(worlds)} WorldImages{named} and must hold one{choose}")
    if worlds[0].spec.inspection is None:
        raise InvalidInputError(
            f"{path}: spec.inspection of WorldImage {worlds[0].metadata.name} is empty; give it tasks:"
            " inspection: {tasks: {source: {path: tasks}}}"
        )
    return worlds[0], worlds[0].spec.inspection


async def inspect(world: WorldImage, inspection: Inspection, base_dir: Path, num_trials: int) -> InspectionReport:
    """Inspect a world's tasks in sandboxes of this machine; as `inspect_world`."""
    sandbox = SandboxSpec(provider="local")
    return await inspect_world(world.metadata.name, inspection, base_dir, num_trials, sandbox)


def print_inspection(report: InspectionReport, folder: Path, console: Console) -> None:
    """Print a report, and leave it as Markdown and JSON.

    Args:
        report: What was found.
        folder: Where the files go.
        console: Where to print.
    """
    text, _ = write_report(report, folder)
    console.print(Markdown(report.text()))
    console.print(f"report: {text}", soft_wrap=True, highlight=False)
