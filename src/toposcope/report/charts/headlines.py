"""What is left of the headline quantities' correlation with the loss once the clocks are known."""

from typing import Any

import altair as alt
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.charts.zero import zero_line
from toposcope.report.charts.series import run_names
from toposcope.report.headline import named
from toposcope.report.headline_table import (
    BEYOND_TREND,
    FAILS_A_TEST,
    TOO_FEW_RUNS,
    headline_rows,
    runs_in_order,
)
from toposcope.report.material import Material
from toposcope.report.outcome import clocks_of
from toposcope.wording import counted

MAX_RUNS = 5  # more runs than these are drawn as their median and range
HEIGHT = 264  # of the plotting area: with legend and axis the chart has 330 pixels
FACTS = (
    (BEYOND_TREND, "passes", "pass", "every test of what is left given the clocks"),
    (TOO_FEW_RUNS, "passes", "pass", "every test that so few runs allow"),
    (FAILS_A_TEST, "fails", "fail", "a test of what is left given the clocks"),
)


def headline_chart(material: Material) -> Chart | None:
    """Draw each headline quantity's correlation with the loss, alone and given the clocks: a line for each run."""
    rows = headline_rows(material)
    if not len(rows):
        return None
    quantities = pl.Series([named(feature) for feature in rows.get_column("feature")])
    rows = rows.with_columns(pl.col("left", "block_low", "block_high").fill_nan(None), quantity=quantities)
    runs, title = runs_in_order(rows, material), _title(rows)
    caption = f"Rank correlation with the loss: filled alone, hollow given {clocks_of(rows)} where that is defined."
    if len(runs) <= MAX_RUNS:
        data = rows.select("quantity", "run", "rho", "left", low="block_low", high="block_high", verdict="word")
        figure = _figure(
            data,
            color=run_colour(run_names(material), legend=len(runs) > 1),
            yOffset=alt.YOffset("run:N", scale=alt.Scale(domain=runs)),
        )
        caption += " Thin: its interval for dependent checkpoints."
    else:
        rho, left = pl.col("rho"), pl.col("left").median()
        data = rows.group_by("quantity", maintain_order=True).agg(rho.median(), left, low=rho.min(), high=rho.max())
        figure = _figure(data, color=alt.datum(f"median of {len(runs)} runs", type="nominal", legend=None))
        caption += f" Marks are medians of {len(runs)} runs; thin: from the lowest to the highest run."
    n = counted(data.get_column("quantity").n_unique(), "quantity", "quantities")
    kind = f"Dot chart of the rank correlation of {n} with the loss in {counted(len(runs), 'run')}"
    return Chart("headlines", title, caption, f"{kind}. {title}.", figure)


def _figure(data: pl.DataFrame, **encoded: Any) -> alt.LayerChart:
    order = data.get_column("quantity").unique(maintain_order=True).to_list()
    between = alt.Axis(grid=True, tickBand="extent", labelLimit=170)
    ends = alt.Scale(domain=[-1, 1], nice=False)
    x = alt.X("rho:Q", title="rank correlation with the loss", scale=ends, axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]))
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("rho", "low", "high", "left")]
    texts = [alt.Tooltip(name) for name in ("quantity", "run", "verdict") if name in data.columns]
    base = alt.Chart(data).encode(
        y=alt.Y("quantity:N", sort=order, title=None, axis=between), tooltip=[*texts, *numbers], **encoded
    )
    defined = base.transform_filter("isValid(datum.left)")
    layers = [
        zero_line("x"),
        base.mark_rule(strokeWidth=1, strokeOpacity=0.6).encode(x=alt.X("low:Q", scale=ends), x2=alt.X2("high:Q")),
        defined.mark_rule(strokeWidth=3, strokeOpacity=0.45).encode(x=alt.X("rho:Q"), x2=alt.X2("left:Q")),
        base.mark_point(filled=True, size=42, opacity=1).encode(x=x),
        defined.mark_point(filled=False, size=42, opacity=1, strokeWidth=1.6).encode(x=alt.X("left:Q")),
    ]
    return alt.LayerChart(layer=layers).properties(height=HEIGHT)


def _title(rows: pl.DataFrame) -> str:
    """Say what is left, of how many quantities."""
    for word, passes, pass_, what in FACTS:
        held = rows.filter(word=word.text)
        if names := held.get_column("quantity").unique(maintain_order=True).to_list():
            title = f"{names[0]} {passes} {what}" if len(names) == 1 else f"{len(names)} quantities {pass_} {what}"
            in_all = len(held) == len(rows.filter(pl.col("quantity").is_in(names)))
            return title if in_all else f"{title} in at least one run"
    if rows.get_column("left").count():
        return "Given the clocks, no correlation is significant"
    return "Given the clocks, nothing is left to test"
