"""Kill a run's processes at random moments, and see whether anything is lost.

    python -m bench.kills [--kills N] [--seed N]

Runs of six steps of four groups: driver, training loop, scheduler, storage and the torch backend are real, the engine
is a process that follows a script (`tests/mortal_runs.py`). SIGKILL hits the driver (three times in five), the policy
rank or the engine, after the run has written a random number of files. Runs are numbered from the seed on: odd ones are
kept in S3 (Versity's gateway, which `make test-tools` builds), where each attempt starts in an empty folder and uploads
are cut; of the even ones every second one may be two steps stale.

After every death of a run on disk: each group that was stored is stored, each batch that was logged is logged and the
same. At the end of a synchronous run: tasks, rewards and weights are those of a run that nobody disturbed. At the end
of an asynchronous one: no group is in two batches, and training its log again gives the same weights, bitwise.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mortal_runs import Death, MortalRun, write_tiny_model
from tests.object_stores import KEYS, RealBucket

KILLS_A_RUN = 8


def survive(run: MortalRun, rng: random.Random, num_kills: int) -> Death:
    """A whole run under fire."""
    death = Death(run, rng)
    death.until_the_end(num_kills)
    return death


def main() -> None:
    """Print what was killed and what was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311  reproducible
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/tmp"))
    os.environ.update(KEYS)
    bucket = RealBucket()
    started = time.monotonic()
    kills: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    attempts, number = 0, arguments.seed
    try:
        bucket.empty()
        model = write_tiny_model(folder / "model")
        calm = MortalRun(folder / "calm", model, max_staleness=0)
        survive(calm, rng, 0)
        while kills.total() < arguments.kills:
            kept_in = bucket.source(f"run-{number}") if number % 2 else None
            run = MortalRun(folder / str(number), model, max_staleness=2 * (number % 4 == 2), kept_in=kept_in)
            death = survive(run, rng, min(KILLS_A_RUN, arguments.kills - kills.total()))
            kills += Counter(death.kills)
            attempts += death.attempts
            checked[_check(run, calm, folder / f"{number}-replayed")] += 1
            number += 1
    finally:
        bucket.close()
        shutil.rmtree(folder, ignore_errors=True)
    victims = ", ".join(f"{count} x {name}" for name, count in kills.most_common())
    print(f"{kills.total()} kills ({victims}) in {attempts} attempts")
    print(", ".join(f"{count} runs {what}" for what, count in checked.items()))
    print(f"nothing lost, {time.monotonic() - started:.0f} s")


def _check(run: MortalRun, calm: MortalRun, replayed: Path) -> str:
    if run.kept_in is not None:
        run.storage(99).taken_over()
    if run.max_staleness == 0:
        if run.trained() != calm.trained() or run.weights() != calm.weights():
            raise SystemExit(f"{run.folder}: not what a run trains that nobody disturbs")
        return "in S3 equal to one that was not killed" if run.kept_in else "on disk equal to one that was not killed"
    trained = [group_id for group_ids in run.durable()[1].values() for group_id in group_ids]
    again = run.replay(replayed)
    survive(again, random.Random(0), 0)  # noqa: S311  nothing is drawn
    if len(trained) != len(set(trained)) or again.weights() != run.weights():
        raise SystemExit(f"{run.folder}: its log does not give its weights")
    return "whose log gives the same weights"


if __name__ == "__main__":
    main()
