"""Errors of each forecaster, and the coverage of its intervals."""

from collections.abc import Iterable, Sequence

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.axes import decade_ticks
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.charts.training import apart
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.held_out import LEVEL
from toposcope.report.backtest import BacktestMaterial, lead, score_columns, seen
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.section import ReportSection
from toposcope.report.tables import Spec, table, text_of

HEIGHT = 280
LABEL_SHARE = 15 / HEIGHT
NAMES_WIDTH = 100  # pixels kept free at the right for the names of the forecasters
READ = "Bold: the default; the others are named at the right. Each run is held out together with all similar runs."


def backtest_charts(material: BacktestMaterial) -> list[Chart]:
    """Draw errors of each forecaster, and coverage and width of its 90% intervals."""
    scores = material.backtest.scores
    charts = [
        _chart(
            scores, "relative_median", "Median error of the default", "median error (% of the final loss)", log=True
        ),
        _chart(scores, "relative_p90", "90th percentile of the default's error", "90th percentile (%)", log=True),
        _chart(scores, "coverage", "Final losses within the default's 90% intervals", "share within (%)", aim=LEVEL),
        _chart(scores, "width", "Width of the default's 90% intervals", "width (% of the loss)"),
    ]
    return [chart for chart in charts if chart is not None]


def _chart(
    scores: pl.DataFrame, column: str, what: str, axis: str, *, log: bool = False, aim: float | None = None
) -> Chart | None:
    """Draw a column of scores in percent, a line for each forecaster, with what a good one aims at."""
    rows = scores.select("forecaster", seen=100 * pl.col("fraction"), value=100 * pl.col(column))
    rows = rows.filter(pl.col("value").is_finite() & ((pl.col("value") > 0) | (not log))).sort("seen")
    if not len(rows):
        return None
    values = [*rows["value"], *([] if aim is None else [100 * aim])]
    low, high = (min(values) / 1.1, max(values) * 1.1) if log else _padded(min(values), max(values))
    ticks = alt.Axis(values=decade_ticks(low, high), format="~g") if log else alt.Axis()
    y = alt.Y(
        "value:Q", title=axis, axis=ticks,
        scale=alt.Scale(type="log" if log else "linear", domain=[low, high], nice=False,
            zero=alt.Undefined if log else False),
    )  # fmt: skip
    x = alt.X(
        "seen:Q", title="share of the run seen (%)", scale=alt.Scale(
            zero=False, nice=False, padding=8, rangeMax=alt.ExprRef(f"width - {NAMES_WIDTH}")),
        axis=alt.Axis(values=rows["seen"].unique().sort().to_list(), grid=False),
    )  # fmt: skip
    base = alt.Chart(rows).encode(x, y, tooltip=["forecaster", "seen", "value"])
    is_default = alt.datum.forecaster == DEFAULT
    hovered = alt.selection_point(name="forecaster", on="pointerover", fields=["forecaster"], empty=False)
    layers = [
        base.transform_filter(~is_default).mark_line(color=MUTED, point={"size": 16, "color": MUTED}).encode(
            detail="forecaster:N", opacity=alt.condition(hovered, alt.value(1), alt.value(0.55)),
            strokeWidth=alt.condition(hovered, alt.value(2.5), alt.value(1)),
        ).add_params(hovered),
        base.transform_filter(is_default).mark_line(strokeWidth=3, point={"size": 50}).encode(
            color=alt.ColorDatum(DEFAULT, legend=None)
        ),
        *_names(rows, x, y, (low, high), log=log),
    ]  # fmt: skip
    if aim is not None:
        target = alt.Chart(pl.DataFrame({"value": [100 * aim]})).mark_rule(strokeDash=[4, 3])
        layers.insert(0, target.encode(x=alt.value(0), x2=alt.value(alt.ExprRef(f"width - {NAMES_WIDTH}")), y=y))
    title = f"{what}: {_first_and_last(rows)}"
    text = f"Line chart over the share of the run seen, a line for each forecaster. {title}."
    return Chart(
        f"backtest-{column.replace('_', '-')}",
        title,
        READ,
        text,
        alt.LayerChart(layer=layers).properties(height=HEIGHT),
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def _names(rows: pl.DataFrame, x: alt.X, y: alt.Y, limits: tuple[float, float], *, log: bool) -> list[alt.Chart]:
    """Name each line at the right of its end, moved apart where lines end together."""
    ends = rows.group_by("forecaster", maintain_order=True).agg(pl.all().last())
    warp, unwarp = (np.log, np.exp) if log else (np.asarray, np.asarray)
    low, high = warp(np.asarray(limits))
    places = apart((warp(ends["value"].to_numpy()) - low) / (high - low), LABEL_SHARE)
    ends = ends.with_columns(place=pl.Series(unwarp(low + places * (high - low))))
    place, beside = (
        alt.Y("place:Q", title=y["title"], scale=y["scale"]),
        alt.value(alt.ExprRef(f"width - {NAMES_WIDTH - 16}")),
    )
    base = alt.Chart(ends)
    names = base.mark_text(align="left", dx=3).encode(x=beside, y=place, text="forecaster")
    return [
        base.mark_rule(color=MUTED, strokeWidth=0.6).encode(x, y, x2=beside, y2="place:Q"),
        names.transform_filter(alt.datum.forecaster != DEFAULT),
        names.mark_text(align="left", dx=3, fontWeight="bold").transform_filter(alt.datum.forecaster == DEFAULT),
    ]


def _first_and_last(rows: pl.DataFrame) -> str:
    """Say what the default does with the least and with the most of a run seen."""
    pairs = rows.filter(forecaster=DEFAULT).select("value", "seen").rows()
    first, *later = [f"{_plain(value)}% with {seen:.3g}%" for value, seen in pairs] or ["not known"]
    return first + " of a run seen" * bool(pairs) + (f", {later[-1]}" if later else "")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _blocks(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    backtest = material.backtest
    specs: tuple[Spec, ...] = (text_of("forecaster", "forecaster", names_row=True), *score_columns())
    tables = [
        table(f"scores-{i}", seen(fraction), specs, backtest.scores.filter(fraction=fraction).to_dicts())
        for i, fraction in enumerate(backtest.fractions)
    ]
    note = say(
        f"MAE and bias in {backtest.unit}; all other columns relative to the final loss. The target is the mean of the "
        "last 2% of a run's logged steps. All forecasts: ", csv("forecasts"), ", scores: ", csv("scores"), ".",
        note=True,
    )  # fmt: skip
    return (*pictures, *tables, note)


SECTION = ReportSection[BacktestMaterial](
    anchor="errors",
    title="Errors",
    position=10,
    tables={"forecasts": lambda material: material.backtest.rows, "scores": lambda material: material.backtest.scores},
    charts=(backtest_charts,),
    blocks=_blocks,
    summary=lambda material: lead(material.backtest),
    summary_position=10,
)
