"""What a trial process does between fork and exit."""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
from pathlib import Path

from seatrial_api.sandboxes import BROKER_VARIABLE
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.channel import Start, answer_packets
from seatrial_rollout.trials.runner import run_trial

_LAZY_MODULES = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "harbor.agents.nop",
    "harbor.agents.oracle",
    "harbor.trial.single_step",
    "harbor.trial.sync_trajectory",
    "harbor.verifier.verifier",
    "seatrial_rollout.environment.local",
    "seatrial_rollout.harness.archipelago",
    "seatrial_rollout.judge.client",
    "seatrial_rollout.trials.verifier",
)
"""Imported by Harbor or by the runner in the middle of a trial; here once for all forks."""


_OF_KUBERNETES = ("seatrial_rollout.environment.broker", "seatrial_rollout.environment.kubernetes")
"""The same, where there is a broker; importing gRPC starts no thread, using it does."""


def warm_up(model_path: Path | None) -> None:
    """Load all that trials share, so that forks find it in memory."""
    for module in (*_LAZY_MODULES, *(_OF_KUBERNETES if BROKER_VARIABLE in os.environ else ())):
        importlib.import_module(module)
    if model_path is not None:
        from seatrial_api.errors import InvalidInputError  # noqa: PLC0415
        from seatrial_rollout.tito.template import ChatTemplate  # noqa: PLC0415

        with contextlib.suppress(InvalidInputError):  # every trial that needs it says so with its own outcome
            ChatTemplate.load(model_path).encode("<s> The first text is slow: 1 2 3.\n")


def run_trial_process(link: socket.socket, start: Start) -> None:
    """Run the trial and send its trajectory to the host."""
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # or asyncio takes it, and with that the time to print all that is here
    # The loop is not closed: the process ends behind it, and nobody has to wait for its threads.
    trajectory = asyncio.Runner().run(_run_until_stopped(start))
    for packet in answer_packets(trajectory.model_dump_json().encode()):
        link.send(packet)


async def _run_until_stopped(start: Start) -> Trajectory:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_trial(start.request, start.work_dir, start.turns_file, start.wall_seconds)
