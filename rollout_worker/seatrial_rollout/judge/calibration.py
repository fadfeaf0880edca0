"""How far a judge can be trusted: its verdicts against human labels.

    python -m seatrial_rollout.judge.calibration labels.csv

The file has a line for each graded criterion: columns `human` and `judge` hold 1 or 0, true or false, passed or failed;
`criterion` is optional. CSV, or JSON lines if its name ends in `.jsonl`.
"""

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial_api.errors import InvalidInputError

_TRUE = {"1", "1.0", "true", "yes", "pass", "passed"}
_FALSE = {"0", "0.0", "false", "no", "fail", "failed"}
_Z = 1.959964
"""Of an interval of 95 %."""
ALL = "all"
"""Name of the row over all criteria."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One criterion of one trial, decided twice."""

    human: bool
    judge: bool
    criterion: str = ""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How two ways to decide go together."""

    both_pass: int
    both_fail: int
    only_judge_passes: int
    only_human_passes: int

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> "Calibration":
        """Count pairs."""
        cells: defaultdict[tuple[bool, bool], int] = defaultdict(int)
        for pair in pairs:
            cells[pair.human, pair.judge] += 1
        return cls(cells[True, True], cells[False, False], cells[False, True], cells[True, False])

    @property
    def count(self) -> int:
        """Pairs."""
        return self.both_pass + self.both_fail + self.only_judge_passes + self.only_human_passes

    @property
    def agreement(self) -> float:
        """Share decided alike."""
        return (self.both_pass + self.both_fail) / self.count

    @property
    def agreement_interval(self) -> tuple[float, float]:
        """95 % interval of the agreement (Wilson 1927)."""
        n, p = self.count, self.agreement
        middle = p + _Z**2 / (2 * n)
        spread = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return (middle - spread) / (1 + _Z**2 / n), (middle + spread) / (1 + _Z**2 / n)

    @property
    def kappa(self) -> float | None:
        """Agreement beyond chance (Cohen 1960): 1 is perfect, 0 is chance; None where both always say the same."""
        n = self.count
        human = (self.both_pass + self.only_human_passes) / n
        judge = (self.both_pass + self.only_judge_passes) / n
        chance = human * judge + (1 - human) * (1 - judge)
        return None if chance == 1 else (self.agreement - chance) / (1 - chance)


def read_pairs(file: Path) -> list[Pair]:
    """The pairs of a file.

    Raises:
        InvalidInputError: if it is not as it has to be, with the line to correct.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows: list[Mapping[str, Any]] = (
                [json.loads(line) for line in lines if line.strip()]
                if file.suffix == ".jsonl"
                else list(csv.DictReader(lines))
            )
    except (OSError, ValueError) as exc:
        raise InvalidInputError(f"{file} cannot be read: {exc}; give CSV or JSON lines") from exc
    if not rows:
        raise InvalidInputError(f"{file} has no labels; give columns human and judge")
    return [_pair(row, f"{file}, label {number}") for number, row in enumerate(rows, start=1)]


def calibrate(pairs: Sequence[Pair]) -> dict[str, Calibration]:
    """Over all pairs, then by criterion, those that agree least first."""
    groups: defaultdict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.criterion].append(pair)
    by_criterion = {name: Calibration.of(group) for name, group in groups.items() if name}
    ordered = sorted(by_criterion.items(), key=lambda item: (item[1].agreement, item[0]))
    return {ALL: Calibration.of(pairs), **dict(ordered)}


def table(rows: Mapping[str, Calibration]) -> str:
    """The figures for a person."""
    width = max(map(len, [*rows, "criterion"]))
    lines = [f"{'criterion':{width}}  labels  agreement  95 % interval  kappa  judge too kind  too strict"]
    for name, found in rows.items():
        low, high = found.agreement_interval
        kappa = "-" if found.kappa is None else f"{found.kappa:.2f}"
        lines.append(
            f"{name:{width}}  {found.count:6}  {found.agreement:9.3f}  {low:.3f} - {high:.3f}  {kappa:>5}"
            f"  {found.only_judge_passes:14}  {found.only_human_passes:10}"
        )
    return "\n".join(lines)


def _pair(row: Mapping[str, Any], where: str) -> Pair:
    return Pair(_label(row, "human", where), _label(row, "judge", where), str(row.get("criterion") or ""))


def _label(row: Mapping[str, Any], column: str, where: str) -> bool:
    text = str(row.get(column, "")).strip().lower()
    if text not in _TRUE | _FALSE:
        raise InvalidInputError(f"{where}: {column} is {text!r}; write 1 or 0")
    return text in _TRUE


def main(arguments: Sequence[str]) -> int:
    """Print the figures of a file; 2 if it cannot be used."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m seatrial_rollout.judge.calibration LABELS\n")
        return 2
    try:
        sys.stdout.write(table(calibrate(read_pairs(Path(arguments[0])))) + "\n")
    except InvalidInputError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
