"""Published courses of single runs, with ours where the run is measured here."""

import numpy as np
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import (
    NP,
    PUBLISHED,
    StudyData,
    Trace,
    cloud_charts,
    cloud_feature,
    clouds_of,
    direction,
    first_last,
    run_names,
    training_lines,
)
from toposcope_experiments.published_study.findings import NAMES, StudyTables, chart_name

TRACED = {"weights": ("np_mean", "H0.total"), "hidden_states": ("effective_rank", "H0.total", "H1.entropy")}
"""Quantities whose course is drawn, by what a publication measured."""
AS_PUBLISHED, EXACT, PROTOCOL = "as published", "ours, exact", "ours, its protocol"
HEIGHT = 200


def trace_charts(data: StudyData) -> list[Chart]:
    """Draw the published traces of single runs next to ours: a chart for each quantity."""
    claims = data.declaration.published
    quantities = TRACED[claims.subject if claims else "weights"]
    traces = _traces(data, quantities)
    drawn = (_chart(data, traces, quantity) for quantity in quantities)
    return [chart for chart in drawn if chart is not None]


def _chart(data: StudyData, traces: dict[str, Trace], quantity: str) -> Chart | None:
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
    caption = (
        f"Published values of {len(traces)} run{'s'[: len(traces) > 1]} and ours, by the published protocol and exact."
    )
    runs = list(dict.fromkeys([*run_names(data), *traces]))
    figure = training_lines(rows, NAMES[quantity], runs, dashes=series, height=HEIGHT, may_be_log=quantity != "np_mean")
    alternative = f"Line chart of a published quantity against the training step. {title}."
    return Chart(chart_name("traces", quantity), title, caption, alternative, figure)


def _ours(data: StudyData, run: str, quantity: str) -> list[pl.DataFrame]:
    """Return what was measured of a run here: by the published protocol, where that differs, and exact."""
    found, claims = {t.run: t for t in data.trajectories}, data.declaration.published
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
    claims = data.declaration.published
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
