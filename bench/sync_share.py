"""How long weight syncs hold the engines up, as a share of a training step, in a run that has trained.

    python bench/sync_share.py RUN_FOLDER

Reads stages/*/steps.jsonl. Paused is the time in which no request could go on; the rest of a sync, such as writing the
weights, happens beside running requests.
"""

import json
import statistics
import sys
from pathlib import Path


def row(name: str, seconds: list[float], steps: list[float]) -> str:
    """One line of the table."""
    shares = [part / step for part, step in zip(seconds, steps, strict=True)]
    milliseconds = 1e3 * statistics.median(seconds)
    return f"| {name} | {milliseconds:.0f} | {sum(seconds) / sum(steps):.2%} | {max(shares):.2%} |"


def main() -> None:
    """Print one table for each stage that trained."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    logs = sorted(Path(sys.argv[1]).glob("stages/*/steps.jsonl"))
    if not logs:
        sys.exit(f"no stage of {sys.argv[1]} has trained: there is no stages/*/steps.jsonl")
    for log in logs:
        records = [json.loads(line) for line in log.read_text().splitlines()]
        steps = [record["step_seconds"] for record in records]
        print(f"{log.parent.name}: {len(steps)} steps of {statistics.median(steps):.1f} s (median)\n")
        print("| part | ms, p50 | share of all steps | largest share of a step |")
        print("| --- | ---: | ---: | ---: |")
        print(row("engines paused", [record["paused_seconds"] for record in records], steps))
        print(row("whole sync", [record["sync_seconds"] for record in records], steps))
        print(row("training", [record["train_seconds"] for record in records], steps))


if __name__ == "__main__":
    main()
