"""Published correlations with the loss, and published courses of single runs, next to ours."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import (
    NP,
    PUBLISHED,
    StudyData,
    cloud_charts,
    cloud_feature,
    clouds_of,
    direction,
    first_last,
    run_names,
    runs_of,
    training_lines,
    zero_line,
)
from toposcope_experiments.published_study.findings import NAMES, StudyTables, chart_name
from toposcope_experiments.published_study.published import Published, Trace
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


TRACED = {"weights": ("np_mean", "H0.total"), "hidden_states": ("effective_rank", "H0.total", "H1.entropy")}
"""Quantities whose course is drawn, by what a publication measured."""
AS_PUBLISHED, EXACT, PROTOCOL = "as published", "ours, exact", "ours, its protocol"
HEIGHT = 200


def trace_charts(data: StudyData) -> list[Chart]:
    """Draw the published traces of single runs next to ours: a chart for each quantity."""
    claims = published_of(data.declaration)
    quantities = TRACED[claims.subject if claims else "weights"]
    traces = _traces(data, quantities)
    drawn = (_trace_chart(data, traces, quantity) for quantity in quantities)
    return [chart for chart in drawn if chart is not None]


def _trace_chart(data: StudyData, traces: dict[str, Trace], quantity: str) -> Chart | None:
    rows = pl.concat(
        [pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "value": pl.Float64, "series": pl.String})]
        + [
            pl.DataFrame({"run": run, "step": trace.steps, "value": trace.values[quantity], "series": AS_PUBLISHED})
            for run, trace in traces.items()
            if quantity in trace.values
        ]
        + [rows for run in traces for rows in _ours(data, run, quantity)],
        how="vertical_relaxed",
    )
    if not len(rows):
        return None
    series = [name for name in (EXACT, AS_PUBLISHED, PROTOCOL) if len(rows.filter(series=name))]
    theirs = _moves(rows.filter(series=AS_PUBLISHED))
    here = f"{_moves(rows.filter(series=EXACT))} here" if EXACT in series else "it is not measured here"
    title = f"{NAMES[quantity]} {theirs} as published; {here}"
    whose = f"{len(traces)} run{'s'[: len(traces) > 1]}"
    caption = f"Published values of {whose} and ours, by the published protocol and exact."
    runs = list(dict.fromkeys([*run_names(data), *traces]))
    figure = training_lines(rows, NAMES[quantity], runs, dashes=series, height=HEIGHT, may_be_log=quantity != "np_mean")
    alternative = f"Line chart of a published quantity against the training step. {title}."
    return Chart(chart_name("traces", quantity), title, caption, alternative, figure)


def _ours(data: StudyData, run: str, quantity: str) -> list[pl.DataFrame]:
    """Return what was measured of a run here: by the published protocol, where that differs, and exact."""
    found, claims = {t.run: t for t in data.trajectories}, published_of(data.declaration)
    subject = claims.subject if claims else "weights"
    tables = StudyTables(data.tables["association"], data.tables["scaling"], found, subject=subject)
    exact, protocol = (tables.feature(run, quantity, published=published) for published in (False, True))
    drawn = {EXACT: exact, PROTOCOL: None if protocol == exact else protocol}
    return [
        pl.DataFrame({"run": run, "step": found[run].steps, "value": found[run].features[feature], "series": name})
        for name, feature in drawn.items()
        if feature is not None and feature.probe != PUBLISHED
    ]


def _traces(data: StudyData, quantities: tuple[str, ...]) -> dict[str, Trace]:
    """Return published values over training: those declared, and those imported for runs that are not measured here.

    Those of hidden states have charts of their own.
    """
    claims = published_of(data.declaration)
    found = dict(claims.traces) if claims else {}
    for trajectory in data.trajectories:
        if NP.feature in trajectory.features or trajectory.run in found or PUBLISHED in trajectory.clouds:
            continue
        values = {q: trajectory.features.get(cloud_feature(PUBLISHED, q)) for q in quantities}
        known = {q: v.tolist() for q, v in values.items() if v is not None and np.isfinite(v).all()}
        if known:
            found[trajectory.run] = Trace(steps=trajectory.steps.tolist(), values=known)
    return found


def _moves(rows: pl.DataFrame) -> str:
    series = (
        part.sort("step").get_column("value").to_numpy() for part in rows.partition_by("run", maintain_order=True)
    )
    return direction([ends for values in series if (ends := first_last(values)) is not None])


def published_state_charts(data: StudyData) -> list[Chart]:
    """Draw the published values of hidden states, where others were measured here."""
    clouds = clouds_of(data.trajectories)
    return cloud_charts(data, PUBLISHED, "published-states") if PUBLISHED in clouds[1:] else []
