"""A running bubblewrap, and how a process gets inside."""

import json
import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from seatrial_rollout.environment.isolation import Means
from seatrial_sandbox.errors import SandboxStartError
from seatrial_sandbox.privileges import drop_privileges

_START_SECONDS = 30.0

# The first process of the sandbox: says that it is there, reaps what is orphaned, ends when its owner does. Being
# process 1 it cannot be killed from inside.
_INIT = ["/bin/bash", "-c", "echo; read"]


@dataclass(slots=True)
class Enclosure:
    """Namespaces that exist as long as their first process."""

    bwrap: subprocess.Popen[bytes]
    init_pid: int
    """The first process, as the host numbers it."""
    init: int
    """Its pidfd; it can be read once every process inside has ended."""

    @classmethod
    def open(cls, arguments: Sequence[str]) -> Self:
        """Start bubblewrap and wait until the sandbox is complete.

        Args:
            arguments: Its command line, up to what it runs.

        Raises:
            SandboxStartError: If bubblewrap fails; with its words.
        """
        info_read, info_write = os.pipe()
        bwrap = subprocess.Popen(
            [*arguments, "--info-fd", str(info_write), "--", *_INIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[info_write],
            env={},
        )
        os.close(info_write)
        try:
            facts = _read_json(info_read)
            if facts is not None and bwrap.stdout is not None and _read(bwrap.stdout.fileno()):
                init_pid = int(facts["child-pid"])
                return cls(bwrap, init_pid, os.pidfd_open(init_pid))
            bwrap.kill()
            _, complaint = bwrap.communicate()
            raise SandboxStartError(
                f"bubblewrap failed: {complaint.decode(errors='replace').strip() or 'no reason given'}"
            )
        finally:
            os.close(info_read)

    def enter(self, means: Means, uid: int | None) -> None:
        """Move this single-threaded process inside, for good, without any privilege; its children are all inside.

        It stays in its PID namespace itself, so that nothing inside can see or signal it.

        Args:
            means: How the enclosure was made.
            uid: User to become; only root can.

        Raises:
            OSError: If the kernel refuses.
        """
        namespaces = os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS
        if means is Means.USER_NAMESPACE:
            namespaces |= os.CLONE_NEWUSER
        os.setns(self.init, namespaces)
        drop_privileges(uid)

    def close(self) -> None:
        """End the sandbox with everything in it, and wait for that."""
        if self.bwrap.stdin is not None:
            self.bwrap.stdin.close()
        with suppress(ChildProcessError):
            while True:  # the namespace ends only when all that we started in it is reaped
                os.wait()


def _read(descriptor: int) -> bytes:
    """Read what comes next, or nothing at the end of the file or of our patience."""
    ready, _, _ = select.select([descriptor], [], [], _START_SECONDS)
    return os.read(descriptor, 1 << 16) if ready else b""


def _read_json(descriptor: int) -> dict[str, int] | None:
    """One JSON object, which bubblewrap sends in several writes."""
    data = b""
    while part := _read(descriptor):
        data += part
        try:
            facts: dict[str, int] = json.loads(data)
        except ValueError:
            continue
        return facts
    return None
