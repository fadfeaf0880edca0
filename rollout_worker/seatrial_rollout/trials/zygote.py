"""The warm process that trial processes are forked from.

Importing Harbor, MCP and the harness takes seconds of CPU; forking a process that has done so takes
milliseconds and shares its memory. The zygote therefore loads everything once, starts no thread and no
event loop, and forks one process per trial. It ends, and takes every trial process along, when its host
closes the control pair or dies.

    python -m seatrial_rollout.trials.zygote CONTROL_FD ROOT [MODEL_PATH]
"""

import contextlib
import ctypes
import gc
import os
import select
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from seatrial_rollout.trials.channel import MAX_PACKET_BYTES, Exited, Kill, Ready, Start, Stop, pack, unpack
from seatrial_rollout.trials.folders import try_to_remove

_REMOVE_TRIES = 100
_REMOVE_PAUSE_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJUSTMENT = "500"
"""When memory runs out the kernel ends a trial before it ends an engine or the driver."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial process as the zygote sees it."""

    link: socket.socket
    pid: int
    pidfd: int


@dataclass
class Zygote:
    """Forks, signals and reaps trial processes.

    One loop waits for three kinds of news: a new trial on the control pair, an order on a trial's pair, and
    the end of a trial process on its pidfd. What a trial process leaves behind is adopted by the zygote and
    ended.
    """

    control: socket.socket
    run_trial: Callable[[socket.socket, Start], None]
    """What a forked process does before it exits."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _trials: dict[int, _Trial] = field(default_factory=dict)
    _is_serving: bool = True

    def serve(self) -> None:
        """Work until the host closes the control pair."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._selector.register(self.control, selectors.EVENT_READ, self._accept)
        self.control.send(pack(Ready()))
        try:
            while self._is_serving:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            for trial in self._trials.values():
                _kill_group(trial.pid)
            self._end_orphans()

    def _accept(self) -> None:
        packet, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        if not packet:
            self._is_serving = False
            return
        link = socket.socket(fileno=fds[0])
        order = link.recv(MAX_PACKET_BYTES)
        start = unpack(order) if order else None
        if isinstance(start, Start):
            self._fork(link, start)
        else:
            link.close()

    def _fork(self, link: socket.socket, start: Start) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._enter_trial(link, start, zygote_pid)
                os._exit(0)
            except BaseException:  # noqa: BLE001  the root of a process
                traceback.print_exc()
            finally:  # a trial process never comes back into the zygote's loop
                os._exit(1)
        trial = _Trial(link, pid, os.pidfd_open(pid))
        self._trials[pid] = trial
        self._selector.register(link, selectors.EVENT_READ, lambda: self._obey(trial))
        self._selector.register(trial.pidfd, selectors.EVENT_READ, lambda: self._reap(trial))

    def _enter_trial(self, link: socket.socket, start: Start, zygote_pid: int) -> None:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != zygote_pid:  # it died before the kernel knew that we care
            return
        self._selector.close()
        self.control.close()
        for other in self._trials.values():
            other.link.close()
            os.close(other.pidfd)
        output = os.open(start.work_dir / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT, encoding="utf-8")
        os.environ.update(start.environment)
        gc.enable()
        self.run_trial(link, start)

    def _obey(self, trial: _Trial) -> None:
        packet = trial.link.recv(MAX_PACKET_BYTES)
        order = unpack(packet) if packet else Kill()  # the host is gone
        if not packet:
            self._selector.unregister(trial.link)
        if isinstance(order, Stop):
            os.kill(trial.pid, signal.SIGTERM)
        elif isinstance(order, Kill):
            _kill_group(trial.pid)

    def _reap(self, trial: _Trial) -> None:
        self._selector.unregister(trial.pidfd)
        with contextlib.suppress(KeyError):
            self._selector.unregister(trial.link)
        os.close(trial.pidfd)
        _kill_group(trial.pid)
        _, status, usage = os.wait4(trial.pid, 0)
        del self._trials[trial.pid]
        self._end_orphans()
        with contextlib.suppress(OSError):
            trial.link.send(pack(Exited(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)))
        trial.link.close()

    def _end_orphans(self) -> None:
        """End what dead trial processes left: their children come to the zygote, generation by generation."""
        while orphans := [pid for pid in _children() if pid not in self._trials]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()]


def _kill_group(pid: int) -> None:
    """End a process that is not reaped yet, and its group if it has made one."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        msg = f"prctl({option}) is refused"
        raise OSError(ctypes.get_errno(), msg)


def main() -> None:
    """Load everything, then serve the control pair whose descriptor the command line names."""
    control = socket.socket(fileno=int(sys.argv[1]))
    root = Path(sys.argv[2])
    from seatrial_rollout.trials import process  # noqa: PLC0415  the slow part

    process.warm_up(Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        sys.exit(f"the zygote runs {threads} threads; a fork would lose all but one, so none may start while loading")
    gc.disable()
    gc.collect()
    gc.freeze()  # no collection in a fork touches, and so copies, what all of them share
    try:
        Zygote(control, process.run_trial_process).serve()
    finally:
        for _ in range(_REMOVE_TRIES):
            if try_to_remove(root):
                break
            select.select([], [], [], _REMOVE_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
