"""Write the office's tasks and its world: `python make_tasks.py OUT`."""

import argparse
import asyncio
import shutil
from pathlib import Path

from firm.facts import make_firm
from firm.files import world_files, write_world
from firm.harbor import write_task
from firm.solve import Clerk
from firm.work import all_tasks


def main() -> None:
    """Write `tasks/` and `world/` anew below the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write to; tasks/ and world/ in it are replaced")
    out: Path = parser.parse_args().out
    print(f"{asyncio.run(write_all(out))} tasks in {out / 'tasks'}, their world in {out / 'world'}")


async def write_all(out: Path) -> int:
    """Write everything; returns the number of tasks."""
    firm = make_firm()
    for folder in ("tasks", "world"):
        shutil.rmtree(out / folder, ignore_errors=True)
    world = world_files(firm)
    write_world(firm, out / "world" / "files")
    tasks, clerk = all_tasks(firm), Clerk()
    for task in tasks:
        write_task(task, world, await clerk.outcome(task, world), out / "tasks" / task.name)
    return len(tasks)


if __name__ == "__main__":
    main()
