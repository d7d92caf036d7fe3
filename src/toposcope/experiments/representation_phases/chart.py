"""The three phases of representations in the spectra, and whether the diagrams turn where the spectra do."""

import textwrap
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.analysis.trajectories import Trajectory, cloud_feature
from toposcope.analysis.verdict import LEVEL
from toposcope.analysis.wording import joined
from toposcope.experiments.representation_phases.phases import PER_SCALE
from toposcope.probes.feature import NETWORK
from toposcope.report.figures.chart import (
    COLOURS,
    INK,
    Chart,
    TrainingAxis,
    choose_runs,
    new_figure,
    runs_of,
)
from toposcope.report.headline import cloud_named, clouds_of
from toposcope.report.material import Material
from toposcope.study.kinds import feature_named
from toposcope.typing import Vector

MAX_PANELS = 3
THREE = "warm-up, entropy-seeking, compression-seeking"
DIAGRAMS = ((f"H0.total{PER_SCALE}", "H0.total"), (f"H1.total{PER_SCALE}", "H1.total"), ("H1.entropy",))
"""The first known of each is drawn: published features have no scale to be divided by."""
CLOUD = r" [^ ]+( / scale)?$"
"""What follows the cloud in the name of a feature."""
MAX_TITLE_LETTERS = 66
"""Letters in a line of a title."""
SHADES = (COLOURS[4], COLOURS[5], COLOURS[3])


def representation_phases(material: Material) -> Chart | None:
    """Draw a spectral rank with its turns, and below it what the diagrams do."""
    table, clouds = material.tables["representation_phases"], clouds_of(material.trajectories)
    cloud = pl.col("feature").str.replace(CLOUD, "")
    rows = table.filter(cloud.is_in(clouds), pl.col("n_turns").is_not_null())
    spectral = rows.filter(kind="spectral").unique("run", keep="first", maintain_order=True)
    runs = set(spectral.get_column("run"))
    found = [t for t in material.trajectories if t.run in runs]
    if not found:
        return None
    shown, left_out = choose_runs(found, material.runs, MAX_PANELS)
    figure = new_figure(3.5 * len(shown) + 0.5)
    panels = figure.subplots(2 * len(shown), 1, sharex=True)
    training = TrainingAxis(shown, material.findings, logarithmic=True)
    for (upper, lower), trajectory in zip(panels.reshape(-1, 2), shown, strict=True):
        row = spectral.filter(run=trajectory.run).row(0, named=True)
        _spectrum(upper, trajectory, row)
        mine = rows.filter(run=trajectory.run, kind="diagram")
        _diagrams(lower, trajectory, feature_named(row["feature"]).label, mine)
        _shade(lower, row)
    for axes in panels:
        training.scale(axes)
    panels[-1].set_xlabel(training.label)
    handles, labels = panels[1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    summary = describe_phases(spectral, rows.filter(kind="diagram"))
    return Chart(
        "representation_phases",
        f"{summary} Upper panels: the rank, its turns (lines) and their 95% intervals (shaded), with numbered phases. "
        "Lower panels: statistics of the diagrams, each from its lowest to its highest value, with their own turns "
        f"(hollow marks); totals are divided by the cloud's radius where that is known.{left_out}",
        "A rank of hidden states and statistics of their diagrams against training step, two panels per run. "
        f"{summary}",
        figure,
    )


def describe_phases(spectral: pl.DataFrame, diagrams: pl.DataFrame) -> str:
    """Say in how many runs the three phases are found, and whether diagrams turn there more often than by chance.

    Parameters
    ----------
    spectral : polars.DataFrame
        One row a run of `toposcope.experiments.representation_phases.phases.representation_phases`.
    diagrams : polars.DataFrame
        Rows of the statistics of diagrams of the same clouds.
    """
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
        found += f" ({'; '.join(summary)})" if len(summary) <= MAX_PANELS else ""
    asked = diagrams.filter(pl.col("follows").is_not_null())
    if not len(asked):
        return f"{found}; whether the diagrams turn with the rank cannot be asked."
    alone = (pl.col("follows") == "first") & (_n_targets(asked, spectral) == 1)
    whole = asked.filter(pl.col("follows").is_in(["both", "all"]) | alone)
    met = asked.filter(pl.col("follows") != "none")
    beyond = asked.filter(pl.col("follows") != "none", pl.col("chance") <= LEVEL)
    return (
        f"{found}. Of {len(asked)} statistics of the diagrams of {_clouds(asked)} beside a rank that turns, {len(met)} "
        f"turn at one of its turns at least, {len(whole)} at all of them. For {len(beyond)} of them turns placed at "
        f"random seldom meet as many (p of at most {LEVEL:g}); so it would be for up to {LEVEL * len(asked):.1f} by "
        "chance alone."
    )


def _clouds(rows: pl.DataFrame) -> str:
    """Name the clouds that the rows are of."""
    return joined(
        [cloud_named(label) for label in rows.get_column("feature").str.replace(CLOUD, "").unique(maintain_order=True)]
    )


def _n_targets(asked: pl.DataFrame, spectral: pl.DataFrame) -> pl.Series:
    turns = dict(spectral.select("run", "n_turns").iter_rows())
    return asked.get_column("run").replace_strict(turns, default=0, return_dtype=pl.Int64)


def _turns(row: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return step, low and high of each turn."""
    found = [(row[f"turn_{i}"], row[f"turn_{i}_low"], row[f"turn_{i}_high"]) for i in (1, 2, 3)]
    return [turn for turn in found if turn[0] is not None]


def _spectrum(axes: Axes, trajectory: Trajectory, row: dict[str, Any]) -> None:
    feature = feature_named(row["feature"])
    axes.plot(trajectory.steps, trajectory.features[feature], color=INK, marker="o")
    _shade(axes, row)
    edges = [0.0, *(float(step) for step, _, _ in _turns(row)), float(trajectory.steps[-1])]
    names = row["phases"].split(", ") if row["phases"] else []
    for i, (low, high) in enumerate(pairwise(edges), start=1):
        if names:
            middle = np.expm1((np.log1p(low) + np.log1p(high)) / 2)
            axes.text(middle, 0.97, str(i), transform=axes.get_xaxis_transform(), ha="center", va="top")
    summary = ", ".join(f"{i}\u00a0{name}" for i, name in enumerate(names, start=1)) or "no turn"
    title = textwrap.fill(f"{trajectory.run}: {summary}", MAX_TITLE_LETTERS, break_on_hyphens=False)
    axes.set_title(title, loc="left")
    axes.set_ylabel({"rankme": "RankMe", "effective_rank": "effective rank"}.get(feature.statistic, feature.statistic))
    axes.margins(y=0.2)


def _shade(axes: Axes, row: dict[str, Any]) -> None:
    for (step, low, high), colour in zip(_turns(row), SHADES, strict=False):
        axes.axvspan(low, high, color=colour, alpha=0.25, linewidth=0)
        axes.axvline(step, color=INK, linewidth=0.9, linestyle="--")


def _diagrams(axes: Axes, trajectory: Trajectory, cloud: str, rows: pl.DataFrame) -> None:
    """Draw statistics from their lowest to their highest value, with their turns."""
    turns = {row["feature"]: _turns(row) for row in rows.iter_rows(named=True)}
    for names, colour, marker in zip(DIAGRAMS, COLOURS, ("o", "s", "^"), strict=False):
        name = next((n for n in names if np.isfinite(_values(trajectory, cloud, n)).any()), names[0])
        values = _values(trajectory, cloud, name)
        known = np.isfinite(values)
        if known.sum() < 2 or not np.ptp(values[known]) > 0:
            continue
        shares = (values - values[known].min()) / np.ptp(values[known])
        label = name.replace(PER_SCALE, " / radius").replace(".", " ")
        axes.plot(trajectory.steps, shares, color=colour, marker=marker, label=label)
        at = [step for step, _, _ in turns.get(f"{cloud} {name}", [])]
        heights = [float(shares[trajectory.steps == step][0]) for step in at]
        axes.plot(at, heights, linestyle="none", marker=marker, markersize=10, markerfacecolor="none", color=colour)
    axes.set_yticks([0, 1], ["lowest", "highest"])
    axes.set_ylim(-0.12, 1.12)


def _values(trajectory: Trajectory, cloud: str, name: str) -> Vector:
    source = trajectory.features
    if name.endswith(PER_SCALE):
        source, name = trajectory.twins.get(NETWORK, {}), name.removesuffix(PER_SCALE)
    return source.get(cloud_feature(cloud, name), np.full(len(trajectory.steps), np.nan))
