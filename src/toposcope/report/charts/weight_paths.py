"""The paths of runs through their weights: principal components, and diffusion potentials."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import path_panel
from toposcope.report.charts.runs import choose_runs
from toposcope.report.charts.series import runs_of
from toposcope.report.material import Material
from toposcope.report.tables import share

SUMMARIES, POINTS = "weight_paths", "weight_path_points"
"""Names of the tables of `toposcope.analysis.weight_paths`."""
MAX_RUNS = 4
COLUMNS = 2


class Titles(NamedTuple):
    """Of the axes of a panel, and the panel's own."""

    x: str
    y: str
    panel: str


def component_chart(material: Material) -> Chart | None:
    """Draw each path in its first two principal components, with the shares of random walks beside its own."""
    summaries = summaries_of(material)
    if not summaries:
        return None
    titles = {run: Titles(_component(row, 1), _component(row, 2), run) for run, row in summaries.items()}
    figure, left_out = _panels(material, "pc", titles)
    title = component_title(list(summaries.values()))
    caption = (
        "Checkpoints in the units of the weights; on the axes the share of the variance, and that in a random walk "
        f"with steps of the same lengths.{left_out}"
    )
    alternative = f"Path of checkpoints in the plane of two principal components, one panel a run. {title}."
    return Chart("weight-paths", title, caption, alternative, figure)


def potential_chart(material: Material) -> Chart | None:
    """Draw each path in the plane that keeps the distances of its diffusion potentials best."""
    summaries = summaries_of(material)
    if not summaries:
        return None
    titles = {
        run: Titles("first axis (nats)", "second axis (nats)", f"{run}, diffusion time {row['potential_time']}")
        for run, row in summaries.items()
    }
    figure, left_out = _panels(material, "potential", titles)
    worst = max(row["potential_stress"] for row in summaries.values())
    title = f"Diffusion potentials of the checkpoints lie in a plane up to a stress of {worst:.2g}"
    caption = f"Near are checkpoints from which walks over neighbours lead to the same places.{left_out}"
    alternative = f"Path of checkpoints in the plane of their diffusion potentials, one panel a run. {title}."
    return Chart("weight-potentials", title, caption, alternative, figure)


def summaries_of(material: Material) -> dict[str, dict[str, Any]]:
    """Return the summary of the path of each run that has one."""
    return {row["run"]: row for row in material.tables[SUMMARIES].to_dicts()}


def component_title(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the first component holds more of the variance than in random walks."""
    if len(rows) == 1:
        own, walk = share(rows[0]["pc1_share"]), share(rows[0]["pc1_walk_same_steps"])
        return f"PC1 holds {own} of the variance of the path, and {walk} of that of a random walk of the same steps"
    above = sum(row["pc1_share"] > row["pc1_walk_same_steps"] for row in rows)
    return f"PC1 holds more of the variance than in a random walk of the same steps in {runs_of(above, len(rows))}"


def _component(row: Mapping[str, Any], k: int) -> str:
    return f"PC{k}: {share(row[f'pc{k}_share'])} (random walk: {share(row[f'pc{k}_walk_same_steps'])})"


def _panels(material: Material, name: str, titles: Mapping[str, Titles]) -> tuple[alt.ConcatChart, str]:
    """Return a panel for each run, and what the caption says of runs left out."""
    shown, left_out = choose_runs([t for t in material.trajectories if t.run in titles], material.runs, MAX_RUNS)
    points = material.tables[POINTS].select("run", "step", x=f"{name}1", y=f"{name}2")
    panels = [path_panel(points.filter(pl.col("run") == t.run), *titles[t.run]) for t in shown]
    return alt.concat(*panels, columns=COLUMNS).resolve_scale(color="independent"), left_out
