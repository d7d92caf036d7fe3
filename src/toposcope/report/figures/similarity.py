"""How alike representations are: layer by layer at one checkpoint, checkpoint by checkpoint over training."""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toposcope.analysis.trajectories import Trajectory
from toposcope.probes.feature import NETWORK
from toposcope.report.figures.drawn import SMALL, Drawn, Vector, chosen, ink_on, largest, new_figure, number
from toposcope.report.material import Material

PROBE = "similarity"
MEASURES = {"cka": "CKA (1: alike)", "procrustes": "Procrustes (0: alike)", "rtd": "RTD (0: alike)"}
NAMES = {"cka": "CKA", "procrustes": "the Procrustes distance", "rtd": "RTD"}
ALIKE = {"cka": 1.0, "procrustes": 0.0, "rtd": 0.0}
"""The value of a representation beside itself, which is not measured."""
MOST_NUMBERS = 6
"""Rows of a matrix whose cells have room for numbers."""
MOST_TICKS = 6
MOST_RUNS = 2


@dataclass(frozen=True, eq=False)
class _Panel:
    """A symmetric matrix with its title and the names of its rows."""

    title: str
    names: list[str]
    values: Vector


def layer_similarity(material: Material) -> Drawn | None:
    """Draw how alike the layers of the largest run are, at the first and the last checkpoint."""
    rows = _rows(material).filter(pl.col("statistic").str.contains(r"@(hidden\.|network$)"))
    found = _with(material, rows)
    if not found:
        return None
    trajectory = largest(found, material.runs)
    mine = rows.filter(run=trajectory.run)
    names = sorted(set(mine.get_column("layer")), key=lambda name: (name == NETWORK, name))
    if len(names) < 2:
        return None
    short = [_short(name) for name in names]
    measured = mine.get_column("step").unique().sort().to_list()
    steps = sorted({measured[0], measured[-1]})
    panels = {
        measure: [
            _Panel(f"step {step:,}", short, _matrix(mine.filter(step=step), measure, names, "layer")) for step in steps
        ]
        for measure in MEASURES
    }
    panels = _known(panels)
    if not panels:
        return None
    figure = _draw(panels, "layer", "layer")
    told = "; ".join(_of_layers(NAMES[measure], drawn) for measure, drawn in panels.items())
    return Drawn(
        "layer_similarity",
        f"Between the embedding and the last hidden state of {trajectory.run}: {told}. Every pair of layers of one "
        f"checkpoint on the same texts; 0 is the embedding. The diagonal is known without measuring.{_only(found)}",
        f"Heat maps of layer by layer for {trajectory.run}, at {len(steps)} checkpoints, a row a measure. {told}.",
        figure,
    )


def checkpoint_similarity(material: Material) -> Drawn | None:
    """Draw how alike the last hidden state is at any two checkpoints."""
    rows = _rows(material).filter(pl.col("statistic").str.contains("@step.", literal=True), layer=NETWORK)
    found = _with(material, rows)
    if not found:
        return None
    shown, left_out = chosen(found, material.runs, MOST_RUNS)
    panels: dict[str, list[_Panel]] = {measure: [] for measure in MEASURES}
    for trajectory in shown:
        mine = rows.filter(run=trajectory.run)
        earlier = mine.get_column("statistic").str.extract(r"@step\.(\d+)").cast(pl.Int64)
        steps = sorted({*mine.get_column("step"), *earlier})
        for measure, drawn in panels.items():
            values = _matrix(mine, measure, [f"step.{step}" for step in steps], "step")
            drawn.append(_Panel(trajectory.run, [f"{step:,}" for step in steps], values))
    panels = _known(panels)
    if not panels:
        return None
    figure = _draw(panels, "checkpoint (step)", "checkpoint (step)")
    told = "; ".join(_of_checkpoints(measure, drawn) for measure, drawn in panels.items())
    return Drawn(
        "checkpoint_similarity",
        f"The last hidden state beside itself at other checkpoints: {told}. Checkpoints in their order, "
        f"not to scale.{left_out}",
        f"Heat maps of checkpoint by checkpoint for {len(shown)} runs, a row a measure. {told}.",
        figure,
    )


def _rows(material: Material) -> pl.DataFrame:
    """Return what the first comparison declared has measured."""
    if "probe" not in material.frame.columns:
        return pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "layer": pl.String, "statistic": pl.String})
    options = material.labels.filter(probe=PROBE).get_column("options").to_list()[:1]
    return material.frame.filter(pl.col("options").is_in(options), probe=PROBE)


def _with(material: Material, rows: pl.DataFrame) -> list[Trajectory]:
    runs = set(rows.get_column("run"))
    return [t for t in material.trajectories if t.run in runs]


def _only(found: list[Trajectory]) -> str:
    """Say why one run of several is drawn."""
    if len(found) < 2:
        return ""
    return (
        f" Drawn: 1 of {len(found)} runs, the largest of those with at least half as many checkpoints as any; the "
        "tables hold all."
    )


def _short(layer: str) -> str:
    return "last" if layer == NETWORK else str(int(layer.rpartition(".")[2]))


def _matrix(rows: pl.DataFrame, measure: str, names: list[str], row: str) -> Vector:
    """Return the symmetric matrix of a measure; NaN where it is not known."""
    place = {name: i for i, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    mine = rows.filter(pl.col("statistic").str.starts_with(f"{measure}@"), ~pl.col("statistic").str.ends_with(".noise"))
    for at, statistic, value in mine.select(row, "statistic", "value").iter_rows():
        i = place.get(f"step.{at}" if row == "step" else at)
        j = place.get(statistic.partition("@")[2])
        if i is not None and j is not None:
            values[i, j] = value
            if not np.isfinite(values[j, i]):
                values[j, i] = value
    if np.isfinite(values).any():
        np.fill_diagonal(values, ALIKE[measure])
    return values


def _known(panels: dict[str, list[_Panel]]) -> dict[str, list[_Panel]]:
    """Leave out measures that were not taken."""
    return {m: drawn for m, drawn in panels.items() if any(np.isfinite(panel.values).any() for panel in drawn)}


def _draw(panels: dict[str, list[_Panel]], down: str, across: str) -> Figure:
    """Draw matrices, a row a measure with a scale of its own."""
    columns = max(len(drawn) for drawn in panels.values())
    figure = new_figure((2.35 if columns > 1 else 3.2) * len(panels) + 0.4)
    grid = figure.subplots(len(panels), columns, squeeze=False)
    for row, (measure, drawn) in zip(grid, panels.items(), strict=True):
        known = np.concatenate([panel.values.ravel() for panel in drawn])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        norm = mpl.colors.Normalize(low, high if high > low else low + 1)
        colours = mpl.cm.ScalarMappable(norm, "cividis" if measure == "cka" else "cividis_r")
        for axes, panel in zip(row, drawn, strict=False):
            _panel(axes, panel, colours)
        for axes in row[1:]:
            axes.tick_params(labelleft=columns > 1 and len({tuple(p.names) for p in drawn}) > 1)
        row[0].set_ylabel(down)
        figure.colorbar(colours, ax=list(row), label=MEASURES[measure], pad=0.02, aspect=14)
    for axes in grid[-1]:
        axes.set_xlabel(across)
    return figure


def _panel(axes: Axes, panel: _Panel, colours: mpl.cm.ScalarMappable) -> None:
    axes.imshow(panel.values, cmap=colours.cmap).set_clim(*colours.get_clim())
    n = len(panel.names)
    ticks = np.unique(np.linspace(0, n - 1, min(n, MOST_TICKS)).round().astype(int))
    labels = [panel.names[i] for i in ticks]
    axes.set_xticks(ticks, labels, rotation=90 if max(map(len, labels)) > 2 and n > MOST_NUMBERS else 0)
    axes.set_yticks(ticks, labels)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title(panel.title)
    if n <= MOST_NUMBERS:
        for (i, j), value in np.ndenumerate(panel.values):
            if np.isfinite(value) and i != j:
                ink = ink_on(colours.to_rgba(np.array(value))[:3])
                axes.text(j, i, _cell(value), ha="center", va="center", color=ink, fontsize=SMALL)


def _cell(value: float) -> str:
    """Write a value in the width of a cell."""
    text = f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}".lstrip("0")
    return text.replace("-", "−")


def _of_layers(name: str, drawn: list[_Panel]) -> str:
    """Say how far the ends of the network lie apart at each checkpoint."""
    ends = [f"{number(float(p.values[0, -1]))} at {p.title}" for p in drawn if np.isfinite(p.values[0, -1])]
    return f"{name} {' and '.join(ends)}" if ends else f"{name} not known"


def _of_checkpoints(measure: str, drawn: list[_Panel]) -> str:
    """Say how alike the first and the last checkpoint are, and between which neighbours it moves most."""
    told = []
    for panel in drawn:
        neighbours = np.diagonal(panel.values, 1)
        ends = panel.values[0, -1]
        if not np.isfinite(neighbours).any() or not np.isfinite(ends):
            continue
        moved = int(np.nanargmax(np.abs(neighbours - ALIKE[measure])))
        told.append(
            f"{number(float(ends))} between first and last in {panel.title}, where neighbours differ most at steps "
            f"{panel.names[moved]} and {panel.names[moved + 1]} ({number(float(neighbours[moved]))})"
        )
    return f"{NAMES[measure]} {', '.join(told)}" if told else f"{NAMES[measure]} not known between the ends"
