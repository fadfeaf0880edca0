"""Grafana dashboards from the panels of `dashboard_panels`, drawn with Grafana's own library."""

from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase

from dashboard_operator import OPERATOR_ROWS
from dashboard_panels import Form, Panel, Query, Row
from dashboard_pool import POOL_ROWS
from dashboard_run import RUN_ROWS
from dashboard_sandboxes import SANDBOX_ROWS
from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh, VariableSort
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from seatrial_api import metrics as table

_DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8
_NUMBER_HEIGHT = 4


@dataclass(frozen=True, slots=True)
class _Page:
    uid: str
    title: str
    meaning: str
    rows: tuple[Row, ...]
    variables: tuple[dashboard.QueryVariable, ...] = ()


def dashboards() -> dict[str, str]:
    """JSON of every dashboard, by file name."""
    pages = {
        "run.json": _Page(
            "seatrial-run",
            "Seatrial / Run",
            "One RLRun: what it learns, what bounds it, what fails.",
            RUN_ROWS,
            (
                _choice("namespace", f"label_values({table.STAGE_INFO.name}, namespace)"),
                _choice("run", f'label_values({table.STAGE_INFO.name}{{namespace="$namespace"}}, run)'),
            ),
        ),
        "pool.json": _Page(
            "seatrial-pool",
            "Seatrial / Pool",
            "A RolloutPool that stands alone: its engines and its clients.",
            POOL_ROWS,
            (
                _choice("namespace", f"label_values({table.POOL_ENGINES.name}, namespace)"),
                _choice(
                    "pool", f'label_values({table.POOL_ENGINES.name}{{namespace="$namespace"}}, seatrial_dev_pool)'
                ),
            ),
        ),
        "sandboxes.json": _Page(
            "seatrial-sandboxes",
            "Seatrial / Sandboxes",
            "The broker: what it keeps warm, hands out and loses, by world.",
            SANDBOX_ROWS,
            (_choice("team", f"label_values({table.SANDBOXES.name}, team)"),),
        ),
        "operator.json": _Page(
            "seatrial-operator",
            "Seatrial / Operator",
            "The operator: runs, reconciliation, its own cost.",
            OPERATOR_ROWS,
        ),
    }
    return {name: _json(page) for name, page in pages.items()}


def _json(page: _Page) -> str:
    builder = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.meaning)
        .tags(["seatrial"])
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in page.variables:
        builder.with_variable(variable)
    ids = count(1)
    for row in page.rows:
        builder.with_row(dashboard.Row(row.title).id(next(ids)))
        for panel in row.panels:
            builder.with_panel(_panel(panel).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


def _choice(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query(query)
        .datasource(_DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    drawn = _drawn(panel)
    drawn.title(panel.title).description(panel.meaning).datasource(_DATASOURCE).unit(panel.unit).span(panel.span)
    for ref, query in zip(ascii_uppercase, panel.queries, strict=False):
        drawn.with_target(_target(query, panel.form).ref_id(ref))
    return drawn


def _drawn(panel: Panel) -> timeseries.Panel | stat.Panel | heatmap.Panel:
    match panel.form:
        case Form.LINES | Form.STACK:
            return _curves(panel)
        case Form.NUMBER | Form.NAME:
            return _number(panel)
        case Form.HEATMAP:
            return heatmap.Panel().height(_HEIGHT).calculate(calculate=False)


def _curves(panel: Panel) -> timeseries.Panel:
    drawn = (
        timeseries.Panel()
        .height(_HEIGHT)
        .line_width(1)
        .axis_soft_min(0)
        .legend(
            common.VizLegendOptions()
            .show_legend(len(panel.queries) > 1 or "{{" in panel.queries[0].legend)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if panel.form is Form.STACK:
        drawn.fill_opacity(20).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return drawn


def _number(panel: Panel) -> stat.Panel:
    drawn = stat.Panel().height(_NUMBER_HEIGHT).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return drawn.text_mode(BigValueTextMode.NAME) if panel.form is Form.NAME else drawn


def _target(query: Query, form: Form) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range()
    return target.format(PromQueryFormat.HEATMAP) if form is Form.HEATMAP else target
