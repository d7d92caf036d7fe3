"""The three phases of representations in a rank of hidden states: the chart, and the sentence that counts them."""

from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.charts import Chart
from toposcope.extend import (
    CLOUD_STATISTICS,
    LEVEL,
    NETWORK,
    StudyData,
    Vector,
    choose_runs,
    cloud_feature,
    cloud_named,
    clouds_of,
    feature_named,
    joined,
    runs_of,
    step_axis,
)
from toposcope_experiments.representation_phases.phases import PER_SCALE

THREE = "warm-up, entropy-seeking, compression-seeking"
MAX_NAMED = 3  # groups of runs that are named
CLOUD = r" [^ ]+( / scale)?$"  # what follows the cloud in the name of a feature


def rows_of_clouds(data: StudyData) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of the table of phases of the clouds that charts are of: the rank, one a run; and diagrams."""
    table, clouds = data.tables["representation_phases"], clouds_of(data.trajectories)
    rows = table.filter(pl.col("feature").str.replace(CLOUD, "").is_in(clouds), pl.col("n_turns").is_not_null())
    spectral = rows.filter(kind="spectral").unique("run", keep="first", maintain_order=True)
    return spectral, rows.filter(kind="diagram")


def describe_phases(spectral: pl.DataFrame, diagrams: pl.DataFrame) -> str:
    """Say in how many runs the three phases are found, and whether diagrams turn there more often than by chance."""
    exact = spectral.filter(pl.col("phases") == THREE)
    further = spectral.filter(pl.col("phases").str.starts_with(f"{THREE}, "))
    ended = " and with nothing after" if len(further) else ""
    found = f"The three phases of Li et al., in order{ended}, are found in {runs_of(len(exact), len(spectral))}"
    if len(further):
        found += f"; with a fourth stretch after, in {runs_of(len(further), len(spectral))}"
    others = spectral.filter(pl.col("phases") != THREE)
    if len(others):
        by_phases = others.group_by("phases", maintain_order=True).agg("run")
        summary = [f"{', '.join(runs)}: {phases or 'no turn'}" for phases, runs in by_phases.iter_rows()]
        found += f" ({'; '.join(summary)})" if len(summary) <= MAX_NAMED else ""
    asked = diagrams.filter(pl.col("follows").is_not_null())
    if not len(asked):
        return f"{found}; whether the diagrams turn with the rank cannot be asked."
    alone = (pl.col("follows") == "first") & (_n_targets(asked, spectral) == 1)
    whole = asked.filter(pl.col("follows").is_in(["both", "all"]) | alone)
    met = asked.filter(pl.col("follows") != "none")
    beyond = asked.filter(pl.col("follows") != "none", pl.col("chance") <= LEVEL)
    return (
        f"{found}. Of {len(asked)} statistics of the diagrams of {_clouds(asked)} next to a rank that turns, "
        f"{len(met)} turn at one of its turns at least, {len(whole)} at all of them. For {len(beyond)} of them turns "
        f"placed at random seldom meet as many (p of at most {LEVEL:g}); so it would be for up to "
        f"{LEVEL * len(asked):.1f} by chance alone."
    )


def _clouds(rows: pl.DataFrame) -> str:
    """Name the clouds that the rows are of."""
    return joined(
        [cloud_named(label) for label in rows.get_column("feature").str.replace(CLOUD, "").unique(maintain_order=True)]
    )


def _n_targets(asked: pl.DataFrame, spectral: pl.DataFrame) -> pl.Series:
    turns = dict(spectral.select("run", "n_turns").iter_rows())
    return asked.get_column("run").replace_strict(turns, default=0, return_dtype=pl.Int64)


MAX_RUNS = 3
DIAGRAMS = ((f"H0.total{PER_SCALE}", "H0.total"), (f"H1.total{PER_SCALE}", "H1.total"), ("H1.entropy",))
"""The first known of each is drawn: published features have no scale to be divided by."""
HEIGHT = 200


def representation_phase_charts(data: StudyData) -> list[Chart]:
    """Draw a spectral rank with its turns, and what the diagrams do next to it: a chart for each run."""
    spectral, diagrams = rows_of_clouds(data)
    runs = set(spectral.get_column("run"))
    shown, left_out = choose_runs([t for t in data.trajectories if t.run in runs], data.runs, MAX_RUNS)
    return [
        _chart(t, place, spectral.filter(run=t.run).row(0, named=True), diagrams.filter(run=t.run), left_out)
        for place, t in enumerate(shown, start=1)
    ]


def _chart(trajectory: Trajectory, place: int, rank: dict[str, Any], diagrams: pl.DataFrame, left_out: str) -> Chart:
    feature = feature_named(rank["feature"])
    name = CLOUD_STATISTICS[feature.statistic]
    goes = f"goes through {rank['phases']}" if rank["phases"] else "does not turn"
    title = f"{name} of hidden states {goes} in {trajectory.run}"
    caption = (
        "Each quantity from its lowest to its highest value, large marks: its turns; lines and bands: the turns of the "
        f"rank with 95% intervals.{left_out}"
    )
    alternative = (
        f"Line chart of a rank of hidden states and statistics of diagrams against the training step. {title}."
    )
    turns = {str(row["feature"]): _turns(row) for row in diagrams.iter_rows(named=True)}
    series = [_series(trajectory, name, trajectory.features[feature], _turns(rank))]
    for statistics in DIAGRAMS:
        known = [s for s in statistics if np.isfinite(_values(trajectory, feature.label, s)).any()]
        for statistic in known[:1]:
            label = statistic.replace(PER_SCALE, " / radius").replace(".", " ")
            values = _values(trajectory, feature.label, statistic)
            series.append(_series(trajectory, label, values, turns.get(f"{feature.label} {statistic}", [])))
    figure = _figure(pl.concat(series), _turns(rank))
    return Chart(f"representation-phases-{place}", title, caption, alternative, figure)


def _series(trajectory: Trajectory, name: str, values: Vector, turns: list[dict[str, int]]) -> pl.DataFrame:
    """Return ``run, step, series, share, value, turns`` of a quantity; no rows if it does not change."""
    at = [turn["step"] for turn in turns]
    rows = pl.DataFrame({"step": trajectory.steps, "value": values}).filter(pl.col("value").is_finite())
    value = pl.col("value")
    return rows.filter(value.max() > value.min()).select(
        "step", "value", run=pl.lit(trajectory.run), series=pl.lit(name), turns=pl.col("step").is_in(at),
        share=(value - value.min()) / (value.max() - value.min()),
    )  # fmt: skip


def _figure(rows: pl.DataFrame, turns: list[dict[str, int]]) -> alt.LayerChart:
    names = rows.get_column("series").unique(maintain_order=True).to_list()
    ends = alt.Axis(values=[0, 1], labelExpr="datum.value ? 'highest' : 'lowest'")
    base = alt.Chart(rows).encode(
        x=step_axis(rows),
        y=alt.Y("share:Q", title=None, axis=ends, scale=alt.Scale(domain=[-0.05, 1.05], nice=False)),
        color=alt.Color("series:N", title=None, scale=alt.Scale(domain=names)),
        tooltip=["series:N", "step:Q", alt.Tooltip("value:Q", format=".4~g")],
    )
    layers = [base.mark_line(point={"size": 14}), base.transform_filter("datum.turns").mark_point(size=140, opacity=1)]
    if turns:
        at = alt.Chart(pl.DataFrame(turns))
        band = at.mark_rect(color="gray", opacity=0.18).encode(x="low:Q", x2="high:Q")
        layers = [band, at.mark_rule(strokeDash=[4, 3]).encode(x="step:Q"), *layers]
    return alt.LayerChart(layer=layers).properties(height=HEIGHT)


def _turns(row: dict[str, Any]) -> list[dict[str, int]]:
    """Return step, low and high of each turn."""
    found = [{"step": row[f"turn_{i}"], "low": row[f"turn_{i}_low"], "high": row[f"turn_{i}_high"]} for i in (1, 2, 3)]
    return [turn for turn in found if turn["step"] is not None]


def _values(trajectory: Trajectory, cloud: str, name: str) -> Vector:
    source = trajectory.features
    if name.endswith(PER_SCALE):
        source, name = trajectory.twins.get(NETWORK, {}), name.removesuffix(PER_SCALE)
    return source.get(cloud_feature(cloud, name), np.full(len(trajectory.steps), np.nan))
