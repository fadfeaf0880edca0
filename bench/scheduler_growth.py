"""How the driver's cost grows with the trials in flight: CPU a trial, and memory a trial in flight.

    python -m bench.scheduler_growth [--in-flight 100 1000 10000]

The real sampler, scheduler, dispatcher, assembler and buffer in virtual time over trials that only sleep, with the
driver's own thresholds of the garbage collector; each row is a process of its own. Memory is what the process grew by
at its peak: control alone, for the trajectories carry no tokens. A trajectory's own tokens come on top of it, in
proportion to the groups that wait to be trained.
"""

import argparse
import gc
import resource
import subprocess
import sys
import time

from bench.simulated_driver import Setting, ours
from seatrial_trainer.scheduling.virtual_time import run_in_virtual_time

GROUP_SIZE, MAX_STALENESS = 10, 3
DRIVERS_THRESHOLDS = (50_000, 20, 20)


def measure(num_in_flight: int) -> None:
    """Print one row."""
    gc.set_threshold(*DRIVERS_THRESHOLDS)
    setting = Setting(num_in_flight, GROUP_SIZE, MAX_STALENESS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    run_in_virtual_time(ours(setting))
    microseconds = (time.process_time() - start) / setting.num_trials * 1e6
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"| {num_in_flight:,} | {setting.num_trials:,} | {microseconds:.0f} | {grown / 1024:.1f} "
        f"| {grown / num_in_flight:.1f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        measure(arguments.row)
        return
    print("| in flight | trials | CPU µs a trial | memory MiB | KiB a trial in flight |")
    print("|---|---|---|---|---|", flush=True)
    for num_in_flight in arguments.in_flight:
        subprocess.run([sys.executable, "-m", "bench.scheduler_growth", "--row", str(num_in_flight)], check=True)


if __name__ == "__main__":
    main()
