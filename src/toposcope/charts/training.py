"""Lines over training: one line a run, a cursor at one step, zoom, and direct labels where lines are few."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.theme import AT_CURSOR, FAULT, HEIGHT
from toposcope.typing import Vector

MIN_GAP = 0.065  # distance between two labels as a share of the height of the plot


def apart(wanted: Sequence[float] | Vector, min_gap: float = MIN_GAP) -> Vector:
    """Move places in [0, 1] at least `min_gap` apart, as little as possible in least squares, keeping their order."""
    places = np.asarray(wanted, dtype=np.float64)
    if len(places) < 2:
        return places
    order = np.argsort(places, kind="stable")
    gaps = min(min_gap, 1 / (len(places) - 1)) * np.arange(len(places))
    # isotonic regression of the places less the gaps: pools of neighbours share their mean
    pools: list[list[float]] = []
    for value in places[order] - gaps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    placed = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + gaps
    result = np.empty(len(places))
    result[order] = np.clip(placed, gaps, 1 - gaps[::-1]).round(6)
    return result


MAX_LABELS = 6  # more lines than these have a legend instead of a label each
MAX_DOTS = 60  # lines of at most this many points show them
MAX_STOPS = 5_000
"""Points of all lines at which a cursor stops; of more it stops at every so many steps. The lines hold them all."""
MIN_LOG_RATIO = 50  # positive values that differ by more than this factor get a logarithmic axis


def training_lines(
    rows: pl.DataFrame,
    title: str,
    runs: Sequence[str],
    *,
    faults: pl.DataFrame | None = None,
    background: pl.DataFrame | None = None,
    bands: pl.DataFrame | None = None,
    dashes: Sequence[str] = (),
    height: int = HEIGHT,
    may_be_log: bool = True,
) -> alt.LayerChart:
    """Draw a quantity over training.

    Parameters
    ----------
    rows : polars.DataFrame
        ``run``, ``step``, ``value``; with `dashes` also ``series``. Rows without a finite value are left out.
    title : str
        Of the vertical axis, with the unit.
    runs : sequence of str
        All runs of the study, in its order, so that a run has one colour in every chart.
    faults : polars.DataFrame, optional
        ``run``, ``step``, ``finding``: checkpoints that are not what they claim to be, marked on the axis.
    background : polars.DataFrame, optional
        As `rows`, drawn faintly behind them.
    bands : polars.DataFrame, optional
        ``run``, ``step``, ``low``, ``high``: how uncertain the values are, shaded.
    dashes : sequence of str
        The values of ``series``, the solid one first.
    height : int
        Of the plotting area, in pixels.
    may_be_log : bool
        Use a logarithmic axis where positive values differ by more than a factor of 50.

    Returns
    -------
    altair.LayerChart
    """
    rows = rows.filter(pl.col("value").is_finite())
    values = rows.get_column("value").to_numpy()
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    scale = _scale(low, high, log=may_be_log and low > 0 and high > MIN_LOG_RATIO * low)
    encoded: dict[str, Any] = {
        "x": step_axis(rows),
        "y": alt.Y("value:Q", title=title, scale=scale),
        "color": run_colour(runs, legend=_n_lines(rows) > (1 if dashes else MAX_LABELS)),
    }
    extra = {"strokeDash": alt.StrokeDash("series:N", sort=list(dashes), title=None)} if dashes else {}
    base = alt.Chart(rows).encode(**encoded)
    most_points = max(rows.group_by("run").len().get_column("len").to_list(), default=0)
    hover = alt.selection_point(
        name="hover", on="pointermove", clear="pointerout", nearest=True, fields=["step"], empty=False
    )
    at = base.transform_filter(AT_CURSOR)
    layers: list[alt.Chart] = []
    if background is not None and len(background):
        faint = alt.Chart(background.filter(pl.col("value").is_finite())).encode(**encoded)
        layers.append(faint.mark_line(opacity=0.25, strokeWidth=0.8, clip=True))
    if bands is not None and len(bands):
        band = alt.Chart(bands).encode(x=encoded["x"], y=alt.Y("low:Q", scale=scale), y2=alt.Y2("high:Q"))
        layers.append(band.encode(color=encoded["color"]).mark_area(opacity=0.2, clip=True))
    layers += [
        base.mark_line(clip=True, point={"size": 14} if most_points <= MAX_DOTS else False).encode(**extra),
        alt.Chart(_stops(rows)).encode(**encoded).mark_point(opacity=0, size=60).add_params(hover),
        alt.Chart(rows).transform_filter(AT_CURSOR).mark_rule(strokeDash=[4, 3]).encode(x=encoded["x"]),
        at.mark_point(size=60, filled=True, opacity=1),
    ]
    if not dashes and 1 < _n_lines(rows) <= MAX_LABELS:
        layers.append(_end_labels(rows, scale, runs, 15 / height))
    if faults is not None and len(faults):
        layers.append(_faults(faults, height))
    zoom = alt.selection_interval(
        name="zoom",
        bind="scales",
        zoom="wheel![event.shiftKey]",
        translate="[pointerdown, window:pointerup] > window:pointermove!",
    )
    # Altair copies all layers once for each change of their chart.
    layers[0], layers[-1] = layers[0].add_params(zoom), layers[-1].add_params(alt.param(name="at", value=-1))
    return alt.LayerChart(layer=layers, height=height)


def _stops(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows at which a cursor stops: each is a mark, which takes longer to draw than a point of a line."""
    every = -(-len(rows) // MAX_STOPS)
    if every <= 1:
        return rows
    steps = rows.get_column("step").unique().sort()
    return rows.filter(pl.col("step").is_in(steps.gather_every(every).implode()))


def step_axis(rows: pl.DataFrame) -> alt.X:
    """Return the horizontal axis of training: logarithmic where checkpoints are spaced so."""
    return step_axis_of(is_log_spaced(rows.get_column("step").unique().sort().to_numpy()))


def step_axis_of(log: bool, title: str = "training step") -> alt.X:
    """Return the horizontal axis of training; on a logarithmic one, step 0 is next to step 1."""
    if not log:
        return alt.X("step:Q", title=title, scale=alt.Scale(nice=False), axis=alt.Axis(format=",d", tickMinStep=1))
    powers = [0, *(10**k for k in range(10))]
    return alt.X(
        "step:Q", title=title, scale=alt.Scale(type="symlog", constant=1, nice=False),
        axis=alt.Axis(values=powers, labelExpr="format(datum.value, '~s')"),
    )  # fmt: skip


def is_log_spaced(steps: Vector) -> bool:
    """Return whether more than half of the steps lie in the first tenth of training."""
    return len(steps) > 4 and bool((steps <= 0.1 * steps[-1]).mean() > 0.5)


def run_colour(runs: Sequence[str], *, legend: bool = False) -> alt.Color:
    """Return the colour of runs; one run has the same in every chart."""
    return alt.Color("run:N", title=None, scale=alt.Scale(domain=list(runs)), legend=alt.Legend() if legend else None)


def _n_lines(rows: pl.DataFrame) -> int:
    return rows.get_column("run").n_unique()


def _scale(low: float, high: float, *, log: bool) -> alt.Scale:
    margin = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    domain = [low / 1.2, high * 1.2] if log else [low - margin, high + margin]
    return alt.Scale(type="log" if log else "linear", domain=domain, nice=False)


def _end_labels(rows: pl.DataFrame, scale: alt.Scale, runs: Sequence[str], min_gap: float) -> alt.Chart:
    """Write each run's name at the right of its line, moved apart where lines end together."""
    ends = rows.sort("step").group_by("run", maintain_order=True).agg(pl.col("value").last())
    warp, unwarp = (np.log, np.exp) if scale["type"] == "log" else (np.asarray, np.asarray)
    low, high = warp(np.asarray(scale["domain"]))
    places = apart((warp(ends.get_column("value").to_numpy()) - low) / (high - low), min_gap)
    ends = ends.with_columns(value=pl.Series(unwarp(low + places * (high - low))))
    mark: alt.Chart = alt.Chart(ends).mark_text(align="left", dx=6, limit=140, clip=False)
    return mark.encode(x=alt.value("width"), y=alt.Y("value:Q"), text=alt.Text("run:N"), color=run_colour(runs))


def _faults(faults: pl.DataFrame, height: int) -> alt.Chart:
    mark: alt.Chart = alt.Chart(faults).mark_point(shape="triangle-up", size=90, filled=True, color=FAULT, opacity=1)
    return mark.encode(x=alt.X("step:Q"), y=alt.value(height), tooltip=["run:N", "step:Q", "finding:N"])
