"""What the processes of a sandbox may take."""

import resource
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What the processes of one sandbox may take."""

    processes: int = 256
    """Processes and threads in all."""
    memory_mb: int = 4096
    """Private memory, in MiB: of one process, and in the local provider of all of them."""
    file_mb: int = 2048
    """Size of one file, in MiB."""
    open_files: int = 1024
    """Open files of one process."""
    disk_mb: int = 10240
    """All files together, in MiB; pods have limits of their own for this and the next."""
    files: int = 500_000
    """Number of files and folders."""

    def apply(self, pid: int = 0, *, count_processes: bool) -> None:
        """Limit a process and the children that it has from now on.

        Args:
            pid: The process; this one if 0.
            count_processes: Whether to limit the number of processes, which the kernel counts by user.

        Raises:
            ProcessLookupError: If it has ended.
        """
        mib = 1024 * 1024
        bounds = {
            resource.RLIMIT_DATA: self.memory_mb * mib,
            resource.RLIMIT_FSIZE: self.file_mb * mib,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_CORE: 0,
        }
        if count_processes:
            bounds[resource.RLIMIT_NPROC] = self.processes
        for kind, wanted in bounds.items():
            hard = resource.prlimit(pid, kind)[1]
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(pid, kind, (bound, bound))
