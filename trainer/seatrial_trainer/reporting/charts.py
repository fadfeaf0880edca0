"""A run's curves as Vega-Lite charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

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
    specs = [_chart(curves, steps) for curves in CURVES]
    if validations:
        points = [{"version": version, "value": value, "measure": "pass@1"} for version, value in validations.items()]
        specs.insert(1, plot("Validation", "pass@1", points))
    return specs


def _chart(curves: Curves, steps: Steps) -> dict[str, Any]:
    points = [
        {"version": step["version"], "value": step[field], "measure": label}
        for step in steps
        for field, label in curves.fields
        if step.get(field) is not None
    ]
    return plot(curves.title, curves.unit, points)


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
