"""What a person sees of a run on this machine, from its start to its end."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from seatrial.local import launch, log_tail, refusal
from seatrial.summary import print_summary, print_usage
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.playbook import ExitCode
from seatrial_trainer.reporting.report import write_report
from seatrial_trainer.reporting.results import write_results
from seatrial_trainer.storage.run_storage import REPORT_FILE, RESULTS_FILE, TRIALS_FILE, RunStorage


def execute(request: DriverRequest, folder: Path, again: Sequence[str], console: Console, errors: Console) -> int:
    """Run a driver to its end, and tell how it ended and where its results are.

    Args:
        request: What to run.
        folder: The run's folder.
        again: Command that goes on with it after a stop.
        console: Where people read.
        errors: Where they read of failures.

    Returns:
        Exit code of the command.

    Raises:
        InvalidInputError: if the driver refused what it was given.
    """
    console.print(f"run folder: {folder}", soft_wrap=True, highlight=False)
    if request.kept_in:
        console.print(f"kept in: {request.kept_in.uri}", soft_wrap=True, highlight=False)
    code = launch(request, folder, console)
    if code not in set(ExitCode) or not (folder / REPORT_FILE).exists():  # a driver that was killed wrote none
        write_results(folder)
        write_report(folder)
    if reports := list(RunStorage(folder).reports()):
        print_summary(reports, console)
    print_usage(folder, request.run.spec.cost, console)
    for name, file in (("results", RESULTS_FILE), ("trials", TRIALS_FILE), ("report", REPORT_FILE)):
        if (folder / file).exists():
            console.print(f"{name}: {folder / file}", soft_wrap=True, highlight=False)
    if code == ExitCode.INVALID and (reason := refusal(folder)):
        raise InvalidInputError(reason)
    if code not in set(ExitCode) - {ExitCode.FAILED, ExitCode.INVALID}:
        errors.print(f"the driver ended with {code}; the end of {folder / 'driver.log'}:", soft_wrap=True)
        errors.print(log_tail(folder, lines=15), soft_wrap=True, highlight=False, markup=False)
    if code == ExitCode.INTERRUPTED:
        console.print(f"go on with: {shlex.join(again)}", soft_wrap=True, highlight=False)
    return code if code >= 0 else ExitCode.FAILED
