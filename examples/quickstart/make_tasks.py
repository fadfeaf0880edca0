"""Write the quickstart's tasks: `python make_tasks.py OUT`.

The three sets come from seed ranges of their own, so no task stands in two of them. Nothing in this example was
tuned on a seed of the held-out range.
"""

import argparse
import shutil
from pathlib import Path

from office.harbor import write_task
from office.kinds import make_task

SPLITS = {"train": (1_000_000, 384), "validation": (2_000_000, 64), "held_out": (3_000_000, 128)}
"""First seed and number of tasks of each set."""


def main() -> None:
    """Write every set anew below the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write to; its task sets are replaced")
    out: Path = parser.parse_args().out
    write_tasks(out)
    print(", ".join(f"{count} {split}" for split, (_, count) in SPLITS.items()), f"tasks in {out}")


def write_tasks(out: Path) -> None:
    """Write every set below `out`."""
    for split, (first, count) in SPLITS.items():
        shutil.rmtree(out / split, ignore_errors=True)
        for number in range(count):
            task = make_task(first + number)
            write_task(task, out / split / f"{number:04d}-{task.domain}-{task.kind}")


if __name__ == "__main__":
    main()
