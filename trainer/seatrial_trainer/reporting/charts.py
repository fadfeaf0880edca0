"""A run's curves as Vega-Lite charts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from seatrial_trainer.observability.step_record import StepRecord, rewards_by_cohort

_WIDTH, _HEIGHT = 420, 200

Steps = Sequence[Mapping[str, Any]]
"""What was measured about each step, as stored."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Some measures over the weight version in one chart."""

    title: str
    unit: str
    fields: tuple[tuple[str, str], ...]
    """Field of a step, and what a person calls it."""


CURVES = (
    Curves("Reward", "per trial", (("reward_mean", "mean reward"), ("pass_rate", "pass rate"))),
    Curves(
        "Logprob difference, engine against trainer",
        "nats",
        (
            ("logprob_abs_diff_mean", "all tokens"),
            ("fresh_logprob_abs_diff_mean", "tokens of the current weights"),
            ("in_flight_logprob_abs_diff_mean", "after a sync in flight"),
        ),
    ),
    Curves("Staleness", "steps", (("staleness_mean", "mean"), ("staleness_max", "max"))),
    Curves("Entropy", "nats per token", (("entropy", "entropy"),)),
    Curves("Gradient norm", "before clipping", (("grad_norm", "norm"),)),
    Curves("Turns and failed calls", "", (("turns_mean", "turns per trial"), ("tool_failure_rate", "failed calls"))),
    Curves("Infrastructure failures", "share of trials", (("error_rate", "failed"),)),
    Curves(
        "Where a step's time goes",
        "seconds",
        (
            ("buffer_wait_seconds", "waiting for the batch"),
            ("hold_seconds", "of it, for groups that are due"),
            ("train_seconds", "training"),
            ("sync_seconds", "syncing weights"),
            ("paused_seconds", "engines paused"),
        ),
    ),
)


def charts(steps: Steps, validations: Mapping[int, float]) -> list[dict[str, Any]]:
    """Vega-Lite specifications, in the order of the page.

    Args:
        steps: What was measured about each step.
        validations: Validation pass@1 by weight version.
    """
    reward, *others = (_points(curves, steps) for curves in CURVES)
    records = [StepRecord.stored(step) for step in steps]
    reward += [
        {"version": version, "value": value, "measure": "mean reward, by version of admission"}
        for version, value in rewards_by_cohort(records).items()
    ]
    specs = [plot(curves.title, curves.unit, points) for curves, points in zip(CURVES, [reward, *others], strict=True)]
    specs.append(_histogram("Groups by staleness", "steps from admission to training", _staleness(records)))
    if validations:
        points = [{"version": version, "value": value, "measure": "pass@1"} for version, value in validations.items()]
        specs.insert(1, plot("Validation", "pass@1", points))
    return specs


def _points(curves: Curves, steps: Steps) -> list[dict[str, Any]]:
    return [
        {"version": step["version"], "value": step[field], "measure": label}
        for step in steps
        for field, label in curves.fields
        if step.get(field) is not None
    ]


def _staleness(records: Sequence[StepRecord]) -> Counter[int]:
    groups: Counter[int] = Counter()
    for record in records:
        groups.update(record.staleness)
    return groups


def plot(title: str, unit: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Lines over the weight version; each point has a `version`, a `value` and the `measure` that it belongs to."""
    measures = list(dict.fromkeys(point["measure"] for point in points))
    legend = alt.Legend(title=None, orient="bottom") if len(measures) > 1 else None
    data = alt.Data(values=points)  # type: ignore[no-untyped-call]  # altair leaves this class unannotated
    chart = (
        alt.Chart(data, title=title, width=_WIDTH, height=_HEIGHT)
        .mark_line(point=True)
        .encode(
            x=alt.X("version:Q", title="weight version", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("value:Q", title=unit),
            color=alt.Color("measure:N", sort=measures, legend=legend),
            tooltip=["version:Q", "measure:N", alt.Tooltip("value:Q", format=".4g")],
        )
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _histogram(title: str, unit: str, counts: Mapping[int, int]) -> dict[str, Any]:
    data = alt.Data(values=[{"key": key, "count": count} for key, count in sorted(counts.items())])  # type: ignore[no-untyped-call]  # as above
    chart = (
        alt.Chart(data, title=title, width=_WIDTH, height=_HEIGHT)
        .mark_bar()
        .encode(x=alt.X("key:O", title=unit), y=alt.Y("count:Q", title="groups"), tooltip=["key:O", "count:Q"])
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec
