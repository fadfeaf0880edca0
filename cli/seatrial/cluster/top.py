"""The live view of a run in the cluster: the driver's own progress, or the status while no driver answers."""

from threading import Event

from rich.console import Console, RenderableType
from rich.live import Live

from seatrial import live
from seatrial.cluster import view
from seatrial.cluster.runs import ClusterRuns
from seatrial_api.conditions import RunPhase
from seatrial_api.rlrun import RLRun

_POLL_SECONDS = 2.0
_OVER = {RunPhase.SUCCEEDED, RunPhase.FAILED}


def watch(runs: ClusterRuns, name: str, console: Console) -> None:
    """Show a run until it ends.

    Raises:
        InvalidInputError: if there is no such run.
    """
    ended = Event()  # never set: Ctrl-C ends the wait
    with Live(console=console, auto_refresh=False) as screen:
        while True:
            run = runs.get(name)
            screen.update(_look(runs, run), refresh=True)
            if run.status and run.status.phase in _OVER:
                return
            ended.wait(_POLL_SECONDS)


def _look(runs: ClusterRuns, run: RLRun) -> RenderableType:
    progress = runs.progress(run)
    return view.render(run) if progress is None else live.render(progress)
