"""What ext4 takes to make the files of one trial after another, each in a folder that is removed soon after.

    python -m bench.trial_folders [--trials N] [--files N]

Two folders hold the trials' folders, one spread over the disk as a trial host's is and one as it comes. CPU is this
process's own; removal is not counted. On another file system both cost the same.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

from seatrial_rollout.trials.folders import spread

_PAUSE_SECONDS = 0.03
_ROUND = 50


def make_trial(folder: Path, files: int) -> float:
    """CPU milliseconds for a trial's files."""
    before = time.process_time()
    (folder / "workspace").mkdir(parents=True)
    (folder / "logs").mkdir()
    for number in range(files):
        (folder / "workspace" / str(number)).write_bytes(b"x" * 300)
    return (time.process_time() - before) * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--files", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as scattered:
        descriptor = os.open(scattered, os.O_RDONLY | os.O_DIRECTORY)
        spread(descriptor)
        os.close(descriptor)
        pause = threading.Event()
        print("trials, CPU ms each   as it comes   spread    ratio")
        for start in range(0, options.trials, _ROUND):
            figures = []
            for root in (plain, scattered):
                took = []
                for number in range(start, start + _ROUND):
                    folder = Path(root, str(number))
                    took.append(make_trial(folder, options.files))
                    shutil.rmtree(folder)
                    pause.wait(_PAUSE_SECONDS)
                figures.append(statistics.median(took))
            plain_ms, spread_ms = figures
            print(f"{start:5} to {start + _ROUND:5} {plain_ms:18.2f} {spread_ms:8.2f} {plain_ms / spread_ms:8.1f}")


if __name__ == "__main__":
    main()
