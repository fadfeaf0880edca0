"""How a trial host, its zygote and a trial process talk: pickled messages as packets on socket pairs.

    host ── control pair ──▶ zygote        one file descriptor per trial: the far end of a trial pair
    host ◀── control pair ── zygote        Ready, once
    host ── trial pair ────▶ zygote        Start, then perhaps Stop and Kill
    host ◀── trial pair ──── trial         AnswerPart, as many as it takes
    host ◀── trial pair ──── zygote        Exited, after the trial process has been reaped

A packet arrives whole or not at all, so a process killed in mid-sentence garbles nothing. End of file is
the news that the other side died: the zygote ends with its host, and a trial whose pair ends without
`Exited` lost its zygote.
"""

import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seatrial_rollout.trials.request import TrialRequest

MAX_PACKET_BYTES = 128 * 1024
"""Below what Linux lets through in one packet by default."""
_PART_BYTES = 96 * 1024


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote has loaded everything and forks on demand."""


@dataclass(frozen=True, slots=True)
class Start:
    """Run this trial."""

    request: TrialRequest
    work_dir: Path
    """Belongs to the trial alone; the host removes it."""
    environment: dict[str, str]
    """Added to the trial process's environment variables."""
    turns_file: Path
    """Where the policy's turns are kept; what is there was sampled in a process that died."""
    wall_seconds: float
    """Time until the trial's wall deadline."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the trial; it cleans up and answers."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End every process of the trial at once."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of the trajectory as JSON."""

    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Exited:
    """The trial process is gone and reaped."""

    status: int
    """Exit code, or the negative number of the signal that ended it."""
    cpu_seconds: float
    """CPU time of the process and of every child it waited for."""


type Message = Ready | Start | Stop | Kill | AnswerPart | Exited


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; each keeps the borders between packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def pack(message: Message) -> bytes:
    """A message as one packet."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(packet: bytes) -> Message:
    """The message in a packet."""
    # The host itself made the pair and handed out its far end: nobody else can write to it.
    message: Message = pickle.loads(packet)  # noqa: S301
    return message


def answer_packets(answer: bytes) -> Iterator[bytes]:
    """An answer of any length as packets."""
    for start in range(0, len(answer), _PART_BYTES):
        stop = start + _PART_BYTES
        yield pack(AnswerPart(answer[start:stop], is_last=stop >= len(answer)))
