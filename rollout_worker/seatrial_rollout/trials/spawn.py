"""Starts and stops a zygote."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seatrial_api.errors import TransientError
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.trials.channel import MAX_PACKET_BYTES, Ready, packet_pair, unpack

_START_SECONDS = 120.0
"""Time to a loaded zygote; a busy machine needs 10 s."""
_HAND_OVER_SECONDS = 10.0
"""Time in which a living zygote takes a trial from a full queue."""
_SHOWN_OUTPUT_CHARS = 4000

_ENVIRONMENT = {
    "HARBOR_TELEMETRY": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Keeps the zygote free of threads and of network calls at import."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What a trial host needs to know; picklable."""

    model_path: Path | None = None
    """Policy whose tokenizer is loaded once and shared by all trial processes."""
    scratch_dir: Path | None = None
    """Where sandboxes live; the system's temporary folder if empty. Short, as Unix sockets are made below."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the trial processes."""
    grace_seconds: float = 20.0
    """Time that a cancelled trial, or one past its wall deadline, has to clean up before it is killed."""
    sandbox: SandboxSpec | None = None
    """Sandboxes that are made ready before the first trial; others are when a trial asks for them."""
    harnesses: tuple[str, ...] = ()
    """By which agents will work; those of a team's own must be there."""
    num_trials: int = 0
    """Trials that may start at once on all hosts together; their pods are asked for when the hosts start."""

    def environment(self) -> dict[str, str]:
        """Of the zygote and so of the trial processes."""
        return {**os.environ, **_ENVIRONMENT, **self.env}


class ZygoteError(TransientError):
    """The zygote did not start or is gone; the next trial starts another."""


@dataclass(frozen=True, slots=True)
class RunningZygote:
    """A zygote from the host's side."""

    process: asyncio.subprocess.Process
    control: socket.socket

    @classmethod
    async def start(cls, root: Path, config: HostConfig) -> "RunningZygote":
        """Start a zygote and wait until it is loaded.

        Raises:
            ZygoteError: if it ends or stays silent; with the end of its output.
        """
        near, far = packet_pair()
        near.settimeout(0)
        log = root / "zygote.log"
        with far, log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "seatrial_rollout.trials.zygote", str(far.fileno()), str(root)),
                *([] if config.model_path is None else [str(config.model_path)]),
                pass_fds=[far.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=config.environment(),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                packet = await asyncio.get_running_loop().sock_recv(near, MAX_PACKET_BYTES)
        except TimeoutError:
            packet = b""
        if not packet or not isinstance(unpack(packet), Ready):
            near.close()
            await _end(process)
            raise ZygoteError(f"the zygote died or was silent for {_START_SECONDS:.0f} s: {tail(log)}")
        near.settimeout(_HAND_OVER_SECONDS)
        return cls(process, near)

    @property
    def is_alive(self) -> bool:
        """Whether it can fork another trial."""
        return self.process.returncode is None

    def hand_over(self, link: socket.socket) -> None:
        """Give the zygote its end of a trial's pair.

        Raises:
            OSError: if it is gone.
        """
        socket.send_fds(self.control, [b"t"], [link.fileno()])

    async def stop(self, grace_seconds: float) -> None:
        """Let it end all trial processes and itself."""
        self.control.close()
        await _end(self.process, grace_seconds)


async def _end(process: asyncio.subprocess.Process, grace_seconds: float = 0.0) -> None:
    """Wait for a process, and kill it if it takes longer than the grace."""
    try:
        async with asyncio.timeout(grace_seconds):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def tail(log: Path) -> str:
    """The end of a process's output; empty if there is none."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_OUTPUT_CHARS:].strip()
    except OSError:
        return ""
