"""Charts of an Ablate stage: the arms' curves in one picture, and their differences with intervals."""

from typing import Any

import altair as alt

from seatrial_api.stage_report import StageReport
from seatrial_trainer.evaluation.comparison import arm_stage_name
from seatrial_trainer.reporting.charts import plot
from seatrial_trainer.storage.run_storage import RunStorage

_CURVES = (("Reward by arm", "per trial", "reward_mean"), ("Entropy by arm", "nats per token", "entropy"))


def arm_charts(report: StageReport, storage: RunStorage) -> list[dict[str, Any]]:
    """Vega-Lite specifications, the differences first."""
    steps = {arm.name: storage.stage(arm_stage_name(report.stage, arm.name)).read_steps() for arm in report.arms}
    curves = [
        plot(
            f"{title}, {report.stage}",
            unit,
            [
                {"version": step["version"], "value": step[field], "measure": arm}
                for arm, own in steps.items()
                for step in own
            ],
        )
        for title, unit, field in _CURVES
    ]
    return [_differences(report), *curves]


def _differences(report: StageReport) -> dict[str, Any]:
    first = report.arms[0].name
    rows = [
        {"arm": arm.name, "mean": arm.gain.mean, "low": arm.gain.low, "high": arm.gain.high, "verdict": arm.verdict}
        for arm in report.arms
        if arm.gain
    ]
    data = alt.Data(values=rows)  # type: ignore[no-untyped-call]  # altair leaves this class unannotated
    base = alt.Chart(data).encode(y=alt.Y("arm:N", title=None, sort=[arm.name for arm in report.arms]))
    color = alt.Color("verdict:N", legend=alt.Legend(title=None, orient="bottom"))
    intervals = base.mark_rule().encode(
        x=alt.X("low:Q", title=f"pass@1 less that of {first}"), x2="high:Q", color=color
    )
    points = base.mark_point(filled=True, size=70).encode(x="mean:Q", color=color, tooltip=["arm:N", "mean:Q"])
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[4, 4]).encode(x="x:Q")  # type: ignore[no-untyped-call]  # as above
    chart = (zero + intervals + points).properties(title=f"Arms of {report.stage}, 95 % intervals", width=420)
    spec: dict[str, Any] = chart.to_dict()
    return spec
