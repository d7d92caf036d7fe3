"""Similarity of representations: between layers at one checkpoint, and between checkpoints over training."""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toposcope.analysis.trajectories import Trajectory
from toposcope.probes.feature import NETWORK
from toposcope.report.figures.chart import SMALL, Chart, choose_runs, ink_on, largest_run, new_figure, number
from toposcope.report.material import Material
from toposcope.typing import Vector

PROBE = "similarity"
MEASURES = {"cka": "CKA (1: same)", "procrustes": "Procrustes (0: same)", "rtd": "RTD (0: same)"}
NAMES = {"cka": "CKA", "procrustes": "the Procrustes distance", "rtd": "RTD"}
SELF_SIMILARITY = {"cka": 1.0, "procrustes": 0.0, "rtd": 0.0}
"""The similarity of a representation to itself, which is known without measuring."""
MAX_ROWS_WITH_NUMBERS = 6
"""Cells of matrices of up to this many rows have room for numbers."""
MAX_TICKS = 6
MAX_RUNS = 2


@dataclass(frozen=True, eq=False)
class _Panel:
    """A symmetric matrix with its title and the names of its rows."""

    title: str
    names: list[str]
    values: Vector


def layer_similarity_chart(material: Material) -> Chart | None:
    """Draw the similarity between layers of the largest run, at the first and the last checkpoint."""
    rows = _rows(material).filter(pl.col("statistic").str.contains(r"@(hidden\.|network$)"))
    trajectories = _with(material, rows)
    if not trajectories:
        return None
    trajectory = largest_run(trajectories, material.runs)
    run_rows = rows.filter(run=trajectory.run)
    names = sorted(set(run_rows.get_column("layer")), key=lambda name: (name == NETWORK, name))
    if len(names) < 2:
        return None
    short = [_short(name) for name in names]
    measured = run_rows.get_column("step").unique().sort().to_list()
    steps = sorted({measured[0], measured[-1]})
    panels = {
        measure: [
            _Panel(f"step {step:,}", short, _matrix(run_rows.filter(step=step), measure, names, "layer"))
            for step in steps
        ]
        for measure in MEASURES
    }
    panels = _known(panels)
    if not panels:
        return None
    figure = _draw(panels, "layer", "layer")
    summary = "; ".join(_of_layers(NAMES[measure], matrices) for measure, matrices in panels.items())
    return Chart(
        "layer_similarity",
        f"Between the embedding and the last hidden state of {trajectory.run}: {summary}. Every pair of layers of one "
        f"checkpoint on the same texts; 0 is the embedding. The diagonal is known without measuring."
        f"{_only(trajectories)}",
        f"Heat maps of layer by layer for {trajectory.run}, at {len(steps)} checkpoints, one row per measure. "
        f"{summary}.",
        figure,
    )


def checkpoint_similarity_chart(material: Material) -> Chart | None:
    """Draw the similarity of the last hidden state between any two checkpoints."""
    rows = _rows(material).filter(pl.col("statistic").str.contains("@step.", literal=True), layer=NETWORK)
    trajectories = _with(material, rows)
    if not trajectories:
        return None
    shown, left_out = choose_runs(trajectories, material.runs, MAX_RUNS)
    panels: dict[str, list[_Panel]] = {measure: [] for measure in MEASURES}
    for trajectory in shown:
        run_rows = rows.filter(run=trajectory.run)
        earlier = run_rows.get_column("statistic").str.extract(r"@step\.(\d+)").cast(pl.Int64)
        steps = sorted({*run_rows.get_column("step"), *earlier})
        for measure, matrices in panels.items():
            values = _matrix(run_rows, measure, [f"step.{step}" for step in steps], "step")
            matrices.append(_Panel(trajectory.run, [f"{step:,}" for step in steps], values))
    panels = _known(panels)
    if not panels:
        return None
    figure = _draw(panels, "checkpoint (step)", "checkpoint (step)")
    summary = "; ".join(_of_checkpoints(measure, matrices) for measure, matrices in panels.items())
    return Chart(
        "checkpoint_similarity",
        f"The last hidden state at one checkpoint compared with itself at others: {summary}. Checkpoints are in order, "
        f"not to scale.{left_out}",
        f"Heat maps of checkpoint by checkpoint for {len(shown)} runs, one row per measure. {summary}.",
        figure,
    )


def _rows(material: Material) -> pl.DataFrame:
    """Return the rows of the first declared similarity probe."""
    if "probe" not in material.frame.columns:
        return pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "layer": pl.String, "statistic": pl.String})
    options = material.labels.filter(probe=PROBE).get_column("options").to_list()[:1]
    return material.frame.filter(pl.col("options").is_in(options), probe=PROBE)


def _with(material: Material, rows: pl.DataFrame) -> list[Trajectory]:
    runs = set(rows.get_column("run"))
    return [t for t in material.trajectories if t.run in runs]


def _only(trajectories: list[Trajectory]) -> str:
    """Say why one run of several is drawn."""
    if len(trajectories) < 2:
        return ""
    return (
        f" Drawn: 1 of {len(trajectories)} runs, the largest of those with at least half as many checkpoints as any; "
        "the tables hold all."
    )


def _short(layer: str) -> str:
    return "last" if layer == NETWORK else str(int(layer.rpartition(".")[2]))


def _matrix(rows: pl.DataFrame, measure: str, names: list[str], row: str) -> Vector:
    """Return the symmetric matrix of a measure; NaN where it is not known."""
    place = {name: i for i, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    run_rows = rows.filter(
        pl.col("statistic").str.starts_with(f"{measure}@"), ~pl.col("statistic").str.ends_with(".noise")
    )
    for at, statistic, value in run_rows.select(row, "statistic", "value").iter_rows():
        i = place.get(f"step.{at}" if row == "step" else at)
        j = place.get(statistic.partition("@")[2])
        if i is not None and j is not None:
            values[i, j] = value
            if not np.isfinite(values[j, i]):
                values[j, i] = value
    if np.isfinite(values).any():
        np.fill_diagonal(values, SELF_SIMILARITY[measure])
    return values


def _known(panels: dict[str, list[_Panel]]) -> dict[str, list[_Panel]]:
    """Leave out measures without a value."""
    return {m: matrices for m, matrices in panels.items() if any(np.isfinite(panel.values).any() for panel in matrices)}


def _draw(panels: dict[str, list[_Panel]], down: str, across: str) -> Figure:
    """Draw matrices, one row per measure with its own colour scale."""
    columns = max(len(matrices) for matrices in panels.values())
    figure = new_figure((2.35 if columns > 1 else 3.2) * len(panels) + 0.4)
    grid = figure.subplots(len(panels), columns, squeeze=False)
    for row, (measure, matrices) in zip(grid, panels.items(), strict=True):
        known = np.concatenate([panel.values.ravel() for panel in matrices])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        norm = mpl.colors.Normalize(low, high if high > low else low + 1)
        colours = mpl.cm.ScalarMappable(norm, "cividis" if measure == "cka" else "cividis_r")
        for axes, panel in zip(row, matrices, strict=False):
            _panel(axes, panel, colours)
        for axes in row[1:]:
            axes.tick_params(labelleft=columns > 1 and len({tuple(p.names) for p in matrices}) > 1)
        row[0].set_ylabel(down)
        figure.colorbar(colours, ax=list(row), label=MEASURES[measure], pad=0.02, aspect=14)
    for axes in grid[-1]:
        axes.set_xlabel(across)
    return figure


def _panel(axes: Axes, panel: _Panel, colours: mpl.cm.ScalarMappable) -> None:
    axes.imshow(panel.values, cmap=colours.cmap).set_clim(*colours.get_clim())
    n = len(panel.names)
    ticks = np.unique(np.linspace(0, n - 1, min(n, MAX_TICKS)).round().astype(int))
    labels = [panel.names[i] for i in ticks]
    axes.set_xticks(ticks, labels, rotation=90 if max(map(len, labels)) > 2 and n > MAX_ROWS_WITH_NUMBERS else 0)
    axes.set_yticks(ticks, labels)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title(panel.title)
    if n <= MAX_ROWS_WITH_NUMBERS:
        for (i, j), value in np.ndenumerate(panel.values):
            if np.isfinite(value) and i != j:
                ink = ink_on(colours.to_rgba(np.array(value))[:3])
                axes.text(j, i, _cell(value), ha="center", va="center", color=ink, fontsize=SMALL)


def _cell(value: float) -> str:
    """Write a value in the width of a cell."""
    text = f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}".lstrip("0")
    return text.replace("-", "−")


def _of_layers(name: str, matrices: list[_Panel]) -> str:
    """Give the similarity between the first and the last layer at each checkpoint."""
    ends = [f"{number(float(p.values[0, -1]))} at {p.title}" for p in matrices if np.isfinite(p.values[0, -1])]
    return f"{name} {' and '.join(ends)}" if ends else f"{name} not known"


def _of_checkpoints(measure: str, matrices: list[_Panel]) -> str:
    """Give the similarity between the first and the last checkpoint, and the neighbours that differ most."""
    parts = []
    for panel in matrices:
        neighbours = np.diagonal(panel.values, 1)
        ends = panel.values[0, -1]
        if not np.isfinite(neighbours).any() or not np.isfinite(ends):
            continue
        moved = int(np.nanargmax(np.abs(neighbours - SELF_SIMILARITY[measure])))
        parts.append(
            f"{number(float(ends))} between first and last in {panel.title}, where neighbours differ most at steps "
            f"{panel.names[moved]} and {panel.names[moved + 1]} ({number(float(neighbours[moved]))})"
        )
    return f"{NAMES[measure]} {', '.join(parts)}" if parts else f"{NAMES[measure]} not known between the ends"
