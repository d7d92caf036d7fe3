"""Where spectra and diagrams of hidden states turn, and whether they turn together: table, charts and sentences."""

from collections.abc import Iterable, Mapping, Sequence
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
    PUBLISHED,
    STATES,
    Block,
    Column,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    Vector,
    choose_runs,
    cloud_feature,
    cloud_named,
    clouds_of,
    csv_link,
    feature_named,
    folded,
    joined,
    missing,
    named,
    number_of,
    p_value,
    paragraph,
    runs_of,
    step_axis,
    table,
    text_of,
    whole,
)
from toposcope_experiments.representation_phases.phases import DECAYS, PER_SCALE, RANKS, representation_phases

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
    turns = dict(spectral.select("run", "n_turns").iter_rows())
    n_turns = asked.get_column("run").replace_strict(turns, default=0, return_dtype=pl.Int64)
    alone = (pl.col("follows") == "first") & (n_turns == 1)
    whole = asked.filter(pl.col("follows").is_in(["both", "all"]) | alone)
    met = asked.filter(pl.col("follows") != "none")
    beyond = asked.filter(pl.col("follows") != "none", pl.col("chance") <= LEVEL)
    labels = asked.get_column("feature").str.replace(CLOUD, "").unique(maintain_order=True)
    clouds = [cloud_named(label) for label in labels]
    return (
        f"{found}. Of {len(asked)} statistics of the diagrams of {joined(clouds)} next to a rank that turns, "
        f"{len(met)} turn at one of its turns at least, {len(whole)} at all of them. For {len(beyond)} of them turns "
        f"placed at random seldom meet as many (p of at most {LEVEL:g}); so it would be for up to "
        f"{LEVEL * len(asked):.1f} by chance alone."
    )


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
    what = "a rank of hidden states and statistics of diagrams"
    alternative = f"Line chart of {what} against the training step. {title}."
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


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show where spectra and diagrams turn, and whether they turn together."""
    frame = data.tables["representation_phases"]
    rows = [row for row in frame.to_dicts() if row["n_turns"] is not None]
    specs: list[Spec] = [
        (Column("feature", True, names_row=True), lambda row: _named(row["feature"])),
        text_of("run", "run", names_row=True),
        number_of("turns", "n_turns", whole),
        text_of("directions", "directions"),
        *(_turn(i) for i in (1, 2, 3)),
        text_of("phases", "phases", prose=True),
        text_of("turns of the rank it shares", "follows"),
        number_of("by chance", "chance", p_value),
    ]
    found = table("representation-phases", "Turns of spectra and of diagrams", specs, rows)
    note = paragraph(
        "A turn is where a trajectory stops falling and rises, or the reverse, distinguished from noise about a trend "
        "with fewer turns; steps with 95% intervals. A rank that falls, rises and falls again goes through the three "
        "phases of Li et al. 2025. “By chance”: the share of turns placed at random that meet as many turns. All: ",
        csv_link("representation_phases"), ".",
    )  # fmt: skip
    spectral, diagrams = rows_of_clouds(data)
    summary = paragraph(describe_phases(spectral, diagrams)) if len(spectral) else None
    return (*pictures, summary, note if found else None, folded(found, "Turns of spectra and of diagrams"))


def _named(feature: str) -> str:
    per_scale = feature.endswith(PER_SCALE)
    return f"{named(feature.removesuffix(PER_SCALE))}{' / radius' if per_scale else ''}"


def _turn(i: int) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        step, low, high = row[f"turn_{i}"], row[f"turn_{i}_low"], row[f"turn_{i}_high"]
        return "–" if missing(step) else f"{whole(step)} ({whole(low)} to {whole(high)})"

    return Column(("first", "second", "third")[i - 1], True, group="step of the turn"), write


def _finding(data: StudyData) -> str:
    """Count the runs in which a rank of the hidden states turns."""
    ranks = data.tables["representation_phases"].filter(pl.col("n_turns").is_not_null(), kind="spectral")
    turning = ranks.filter(pl.col("n_turns") > 0).get_column("run").n_unique()
    n_runs = ranks.get_column("run").n_unique()
    return f"A rank of the hidden states turns in {runs_of(turning, n_runs)}" if n_runs else ""


def _rank(data: StudyData) -> str:
    spectral = {*RANKS, *DECAYS}
    if any(f.probe in (PUBLISHED, STATES) and f.statistic in spectral for t in data.trajectories for f in t.features):
        return ""
    return "a rank of hidden states, or the decay of their spectrum: rows of the probe hidden_states"


SECTION = ReportSection(
    anchor="representation-phases",
    title="Phases of representations",
    position=112,
    tables={"representation_phases": lambda data: representation_phases(data.trajectories)},
    needs={"representation_phases": (_rank,)},
    charts=(representation_phase_charts,),
    blocks=_blocks,
    finding=_finding,
)
