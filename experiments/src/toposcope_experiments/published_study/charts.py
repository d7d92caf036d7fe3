"""Published correlations with the loss next to ours."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import StudyData, runs_of, zero_line
from toposcope_experiments.published_study.findings import NAMES, StudyTables, chart_name
from toposcope_experiments.published_study.published import Published
from toposcope_experiments.published_study.reading import published_of

SOURCES = ("published", "ours, published protocol", "ours, exact", "the step alone")
SHAPES = ("square", "cross", "circle", "triangle-up")
ROW = 26  # height of a run in pixels


def published_correlation_charts(data: StudyData) -> list[Chart]:
    """Draw published correlations with the loss next to ours and the step's: a chart for each quantity."""
    claims = published_of(data.declaration)
    if claims is None:
        return []
    quantities = [quantity for quantity in NAMES if claims.correlations.get(quantity)]
    named = list(dict.fromkeys(run for quantity in quantities for run in claims.correlations[quantity]))
    measured = [t.run for t in data.trajectories]
    # Where none of the published runs is here, others stand in their place: the same quantities of other models.
    runs = named if set(named) & set(measured) else [*named, *measured]
    return [_chart(data, claims, quantity, runs) for quantity in quantities]


def _chart(data: StudyData, claims: Published, quantity: str, runs: list[str]) -> Chart:
    rows = pl.concat(_correlations(data, claims, quantity, run) for run in runs)
    of_states = claims.subject == "hidden_states"
    title = f"{NAMES[quantity]}: {_title(rows)}"
    intervals = pl.DataFrame(
        [(run, *ends) for run, ends in claims.intervals.get(quantity, {}).items() if run in runs],
        schema=["run", "low", "high"], orient="row",
    )  # fmt: skip
    lines = " Lines: published intervals." if len(intervals) else ""
    loss = "loss on a text" if of_states else "loss of one batch"
    caption = f"Rank correlation with the {loss}, as published.{lines}"
    alternative = f"Dot chart of correlations with the loss, published and ours, one row per run. {title}."
    return Chart(chart_name("published", quantity), title, caption, alternative, _figure(rows, intervals, runs))


def _figure(rows: pl.DataFrame, intervals: pl.DataFrame, runs: list[str]) -> alt.LayerChart:
    y = alt.Y("run:N", sort=runs, title=None, axis=alt.Axis(grid=True, tickBand="extent"))
    marks = alt.Chart(rows).mark_point(filled=False, size=80, strokeWidth=2, opacity=1).encode(
        x=alt.X("rho:Q", title="rank correlation with the loss", scale=alt.Scale(domain=[-1, 1])),
        y=y,
        color=alt.Color("source:N", title=None, scale=alt.Scale(domain=list(SOURCES))),
        shape=alt.Shape("source:N", title=None, scale=alt.Scale(domain=list(SOURCES), range=list(SHAPES))),
        tooltip=["run:N", "source:N", alt.Tooltip("rho:Q", format="+.3f")],
    )  # fmt: skip
    layers = [zero_line("x"), marks]
    if len(intervals):
        layers.insert(1, alt.Chart(intervals).mark_rule(strokeWidth=1).encode(x="low:Q", x2="high:Q", y=y))
    return alt.LayerChart(layer=layers).properties(height=ROW * len(runs))


def _correlations(data: StudyData, claims: Published, quantity: str, run: str) -> pl.DataFrame:
    """Return ``run, source, rho``: published, by the published protocol, exact, of the step; as far as known."""
    found = {t.run: t for t in data.trajectories}
    tables = StudyTables(data.tables["association"], data.tables["scaling"], found, subject=claims.subject)
    target = tables.published_target(run)
    protocol = tables.associated(run, quantity, published=True, target=target)
    exact = tables.associated(run, quantity, published=False, target=target)
    step = exact.get("rho_step", protocol.get("rho_step"))
    values = claims.correlations[quantity].get(run), protocol.get("rho"), exact.get("rho"), step
    known = [(run, source, v) for source, v in zip(SOURCES, values, strict=True) if v is not None and np.isfinite(v)]
    return pl.DataFrame(known, schema={"run": pl.String, "source": pl.String, "rho": pl.Float64}, orient="row")


def _title(rows: pl.DataFrame) -> str:
    """Say in how many runs the step alone does as well, or how far ours is from what was published."""
    wide = rows.pivot("source", index="run", values="rho")
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(s) for s in SOURCES if s not in wide.columns)
    published, protocol, _, step = (pl.col(source) for source in SOURCES)
    both = wide.filter(published.is_not_null(), step.is_not_null())
    if len(both):
        as_strong = len(both.filter(step.abs() >= published.abs()))
        return f"the step alone is at least as strong as the published value in {runs_of(as_strong, len(both))}"
    both = wide.filter(published.is_not_null(), protocol.is_not_null()).select(away=(published - protocol).abs())
    if len(both):
        return f"ours is within {max(both.get_column('away')):.3f} of the published value"
    theirs, ours = wide.filter(published.is_not_null()), wide.filter(protocol.is_not_null())
    if not len(ours) or not len(theirs):
        return "no run of these is measured here"
    less = len(ours.filter(protocol.sign() == theirs.item(0, SOURCES[0]) / abs(theirs.item(0, SOURCES[0]) or 1)))
    return f"of other models it has the published sign in {runs_of(less, len(ours))}"
