"""`python -m seatrial_trainer.driver RUN_FOLDER`: the process that a launcher starts."""

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import prometheus_client
import structlog

from seatrial_api.errors import InvalidInputError
from seatrial_api.playbook import ExitCode
from seatrial_trainer.driver.request import REFUSED
from seatrial_trainer.driver.session import ServerSettings, drive
from seatrial_trainer.storage.run_storage import REQUEST_FILE

LOG_COPY_VARIABLE = "SEATRIAL_LOG_COPY"
"""Environment variable with a file that gets every line of the log too: a pod's own output, for `kubectl logs`."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, eq=False)
class _Streams:
    """Writes to several streams as to one."""

    streams: Sequence[TextIO]

    def write(self, text: str) -> None:
        for stream in self.streams:
            stream.write(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="seatrial_trainer.driver", description="Run one segment of a run.")
    parser.add_argument("folder", type=Path, help="the run's folder; what it holds is gone on with")
    parser.add_argument("--request", type=Path, help=f"the request; {REQUEST_FILE} in the folder by default")
    wanted = parser.parse_args(arguments)
    _set_up_logging()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter
    # Thousands of trials in flight are millions of objects that no collection frees: look at them rarely.
    gc.set_threshold(50_000, 20, 20)
    try:
        return asyncio.run(drive(wanted.folder.absolute(), wanted.request, ServerSettings.from_environment()))
    except InvalidInputError as exc:
        log.error(REFUSED, error=str(exc))  # noqa: TRY400  the sentence suffices
        return ExitCode.INVALID


def _set_up_logging() -> None:
    copy = os.environ.get(LOG_COPY_VARIABLE)
    copies = [Path(copy).open("a", encoding="utf-8")] if copy else []  # noqa: SIM115  open as long as the process
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Streams([sys.stderr, *copies]))),
    )


if __name__ == "__main__":
    sys.exit(main())
