"""What is left of the headline quantities' correlation with the loss once the covariates are known."""

from typing import Any

import altair as alt
import polars as pl

from toposcope.analysis.verdict import BEYOND, LEVEL
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.charts.zero import zero_line
from toposcope.report.charts.series import run_names
from toposcope.report.first_screen import headline_rows, runs_in_order
from toposcope.report.headline import named
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import covariates_of
from toposcope.wording import counted

MAX_RUNS = 5  # more runs than these are drawn as their median and range


def headline_chart(data: StudyData) -> Chart | None:
    """Draw each headline quantity's correlation with the loss, alone and given the covariates: a line for each run."""
    rows = headline_rows(data)
    if not len(rows):
        return None
    quantities = pl.Series([named(feature) for feature in rows.get_column("feature")])
    rows = rows.with_columns(
        pl.col("block_low", "block_high").fill_nan(None),
        partial_rho=pl.col("rho_given_all").fill_nan(None),
        quantity=quantities,
    )
    runs, title = runs_in_order(rows, data), _title(rows)
    caption = f"Rank correlation with the loss: filled alone, hollow given {covariates_of(rows)} where that is defined."
    if len(runs) <= MAX_RUNS:
        shown = rows.select(
            "quantity", "run", "rho", "partial_rho", low="block_low", high="block_high", verdict="verdict"
        )
        figure = _figure(
            shown,
            color=run_colour(run_names(data), legend=len(runs) > 1),
            yOffset=alt.YOffset("run:N", scale=alt.Scale(domain=runs)),
        )
        caption += " Thin: its interval for dependent checkpoints."
    else:
        rho, partial = pl.col("rho"), pl.col("partial_rho").median()
        shown = rows.group_by("quantity", maintain_order=True).agg(rho.median(), partial, low=rho.min(), high=rho.max())
        figure = _figure(shown, color=alt.datum(f"median of {len(runs)} runs", type="nominal", legend=None))
        caption += f" Marks are medians of {len(runs)} runs; thin: from the lowest to the highest run."
    n = counted(shown.get_column("quantity").n_unique(), "quantity", "quantities")
    kind = f"Dot chart of the rank correlation of {n} with the loss in {counted(len(runs), 'run')}"
    return Chart("headlines", title, caption, f"{kind}. {title}.", figure)


def _figure(shown: pl.DataFrame, **encoded: Any) -> alt.LayerChart:
    order = shown.get_column("quantity").unique(maintain_order=True).to_list()
    between = alt.Axis(grid=True, tickBand="extent", labelLimit=170)
    ends = alt.Scale(domain=[-1, 1], nice=False)
    x = alt.X("rho:Q", title="rank correlation with the loss", scale=ends, axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]))
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("rho", "low", "high", "partial_rho")]
    texts = [alt.Tooltip(name) for name in ("quantity", "run", "verdict") if name in shown.columns]
    base = alt.Chart(shown).encode(
        y=alt.Y("quantity:N", sort=order, title=None, axis=between), tooltip=[*texts, *numbers], **encoded
    )
    defined = base.transform_filter("isValid(datum.partial_rho)")
    layers = [
        zero_line("x"),
        base.mark_rule(strokeWidth=1, strokeOpacity=0.6).encode(x=alt.X("low:Q", scale=ends), x2=alt.X2("high:Q")),
        defined.mark_rule(strokeWidth=3, strokeOpacity=0.45).encode(x=alt.X("rho:Q"), x2=alt.X2("partial_rho:Q")),
        base.mark_point(filled=True, size=42, opacity=1).encode(x=x),
        defined.mark_point(filled=False, size=42, opacity=1, strokeWidth=1.6).encode(x=alt.X("partial_rho:Q")),
    ]
    return alt.LayerChart(layer=layers).properties(height=264)


def _title(rows: pl.DataFrame) -> str:
    """Say how many quantities are beyond the trend, or keep a correlation given the covariates."""
    for held, is_, are in (
        (rows.filter(verdict=BEYOND), f"is {BEYOND}", f"are {BEYOND}"),
        (rows.filter(pl.col("p_given_all_adjusted") < LEVEL), "stays significant", "stay significant"),
    ):
        names = held.get_column("quantity").unique(maintain_order=True).to_list()
        if names:
            title = f"{names[0]} {is_}" if len(names) == 1 else f"{len(names)} quantities {are}"
            in_all = len(held) == len(rows.filter(pl.col("quantity").is_in(names)))
            title = f"{title} given the covariates" if held.item(0, "verdict") != BEYOND else title
            return title if in_all else f"{title} in at least one run"
    if rows.get_column("partial_rho").count():
        return "Given the covariates, no correlation is significant"
    return "Given the covariates, nothing is left to test"
