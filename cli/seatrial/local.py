"""The local launcher: one driver process on this machine, watched through its progress server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import httpx
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live

from seatrial.live import PlainView, render
from seatrial_api.driver_request import DriverRequest
from seatrial_api.progress import Progress
from seatrial_trainer.driver.request import ADDRESS_FILE, LOG_FILE, REFUSED, DriverAddress
from seatrial_trainer.storage.run_storage import REQUEST_FILE

_POLL_SECONDS = 0.5


def launch(request: DriverRequest, folder: Path, console: Console) -> int:
    """Run a driver to its end and show what it does.

    Ctrl-C asks the driver to stop: it saves a checkpoint and ends by itself. A second one ends it at once.

    Returns:
        The driver's exit code.
    """
    (folder / REQUEST_FILE).write_text(request.model_dump_json(by_alias=True, indent=2))
    (folder / ADDRESS_FILE).unlink(missing_ok=True)
    with (folder / LOG_FILE).open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "seatrial_trainer.driver", str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with _forwarding_signals(driver):
        _watch(driver, folder, console)
    return driver.wait()


def read_progress(folder: Path, client: httpx.Client | None = None) -> Progress | None:
    """The progress of the driver that works in a folder; none when no driver answers.

    Args:
        folder: Folder of the run.
        client: Spares a caller who asks often the setting up of a new one.
    """
    try:
        address = DriverAddress.model_validate_json((folder / ADDRESS_FILE).read_text())
        get = client.get if client else httpx.get
        token = os.environ.get("SEATRIAL_DRIVER_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else None
        answer = get(f"{address.url}/v1/progress", timeout=5.0, headers=headers)
        return Progress.model_validate_json(answer.content)
    except (OSError, httpx.HTTPError, ValidationError):
        return None


def log_tail(folder: Path, lines: int) -> str:
    """The last lines of the driver's log."""
    return "\n".join((folder / LOG_FILE).read_text(errors="replace").splitlines()[-lines:])


def refusal(folder: Path) -> str:
    """Why a driver refused what it was given, as its log says; empty if it says nothing of the kind."""
    for line in reversed(log_tail(folder, lines=15).splitlines()):
        with suppress(ValueError, TypeError, KeyError):
            event = json.loads(line)
            if event["event"] == REFUSED:
                return str(event["error"])
    return ""


def _watch(driver: subprocess.Popen[bytes], folder: Path, console: Console) -> None:
    if not console.is_terminal:
        view = PlainView(console)
        for progress in _snapshots(driver, folder):
            view.update(progress)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for progress in _snapshots(driver, folder):
            live.update(render(progress))


def _snapshots(driver: subprocess.Popen[bytes], folder: Path) -> Iterator[Progress]:
    with httpx.Client() as client:
        while True:
            progress = read_progress(folder, client)
            if progress is not None:
                yield progress
            try:
                driver.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return


@contextmanager
def _forwarding_signals(driver: subprocess.Popen[bytes]) -> Iterator[None]:
    received = 0

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if driver.poll() is None:
            os.kill(driver.pid, number if received == 1 else signal.SIGKILL)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
