"""What every process of this package does when it begins and when it ends."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Namespace of the pod; `default` outside of a cluster."""
    return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if _NAMESPACE_FILE.exists() else "default"


def new_identity() -> str:
    """A name of this process that no other process has."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


async def until_signal(work: Coroutine[None, None, None]) -> None:
    """Do the work until it is done, or until SIGTERM or SIGINT cancels it, whatever it waits for just then."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not in a task")
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, task.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("ending")


def configure_logging() -> None:
    """One JSON object a line, ours and the libraries' alike."""
    level = logging.getLevelNamesMapping()[os.environ.get("SEATRIAL_LOG_LEVEL", "INFO").upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("seatrial_operator").setLevel(level)
