"""Trained layers beside random matrices of their shape."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.report.figures.chart import INK, Chart, largest_run, new_figure
from toposcope.report.figures.layers import short_names
from toposcope.report.material import Material

STATISTICS = (
    ("np_mean", "neural persistence", "mean neural persistence"),
    ("H0.total", "H0 total", "H0 total / weight norm"),
)
ENSEMBLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"))
OFFSETS = (-0.3, -0.15, 0.0, 0.15, 0.3)
"""Vertical offsets of the ensembles within the row of a layer."""
MAX_LAYERS = 18
MIN_UNUSUAL_Z = 3.0
"""Standard deviations from an ensemble's mean above which the ensemble does not explain a layer."""


def random_matrix_chart(material: Material) -> Chart | None:
    """Draw the first and the last value of every layer of the largest run beside random matrices."""
    table = material.tables["references"]
    names = set(table.get_column("run"))
    found = [t for t in material.trajectories if t.run in names]
    if not found:
        return None
    trajectory = largest_run(found, material.runs)
    rows = table.filter(run=trajectory.run)
    layers = rows.get_column("layer").unique(maintain_order=True).to_list()
    kept = [
        layers[i] for i in np.unique(np.linspace(0, len(layers) - 1, min(len(layers), MAX_LAYERS)).round().astype(int))
    ]
    statistics = [s for s in STATISTICS if len(rows.filter(statistic=s[0]))]
    if not statistics:
        return None
    figure = new_figure(0.36 * len(kept) + 1.6)
    panels = figure.subplots(1, len(statistics), sharey=True, squeeze=False)[0]
    for axes, (statistic, _, label) in zip(panels, statistics, strict=True):
        _panel(axes, rows.filter(statistic=statistic), kept)
        axes.set_xlabel(label)
    panels[0].set_yticks(range(len(kept)), short_names(kept, trajectory.roles))
    panels[0].set_ylim(len(kept) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    summary = " ".join(_describe(table, statistic, name) for statistic, name, _ in statistics)
    left_out = f" {len(kept)} of its {len(layers)} layers are drawn." if len(kept) < len(layers) else ""
    return Chart(
        "references",
        f"{summary} Drawn: {trajectory.run}; hollow circle: first checkpoint; filled: last; coloured: random matrices "
        f"of the same shape, their mean and ± 2 standard deviations.{left_out}",
        f"First and last value of every layer of {trajectory.run} beside those of random matrices. {summary}",
        figure,
    )


def _panel(axes: Axes, rows: pl.DataFrame, layers: list[str]) -> None:
    ensembles = rows.get_column("ensemble").unique(maintain_order=True).to_list()
    place = {layer: i for i, layer in enumerate(layers)}
    rows = rows.filter(pl.col("layer").is_in(layers))
    for offset, ensemble, (colour, marker) in zip(OFFSETS, ensembles, ENSEMBLES, strict=False):
        ensemble_rows = rows.filter(ensemble=ensemble)
        heights = [place[layer] + offset for layer in ensemble_rows.get_column("layer")]
        axes.errorbar(
            ensemble_rows["mean"], heights, xerr=2 * ensemble_rows["sd"].to_numpy(), linestyle="none", color=colour,
            marker=marker, markersize=4, elinewidth=1.6, alpha=0.85, label=ensemble.replace("_", " "), zorder=2,
        )  # fmt: skip
    values = rows.unique("layer", maintain_order=True)
    heights = [place[layer] for layer in values.get_column("layer")]
    for (low, high), height in zip(values.select("first", "last").iter_rows(), heights, strict=True):
        axes.plot([low, high], [height, height], color=INK, linewidth=0.9, zorder=3)
    for name, face in (("first", "white"), ("last", INK)):
        axes.plot(
            values[name], heights, color=INK, markerfacecolor=face, linestyle="none", marker="o", markersize=6.5,
            label=f"{name} checkpoint", zorder=4,
        )  # fmt: skip
    axes.grid(visible=False, axis="y")


def _describe(table: pl.DataFrame, statistic: str, name: str) -> str:
    """Count the layers of all runs that no ensemble explains, at the first and at the last checkpoint."""
    rows = table.filter(statistic=statistic)
    listed_first = str(rows.item(0, "ensemble"))
    far = rows.group_by("run", "layer", maintain_order=True).agg(
        first=(pl.col("z_first").abs() > MIN_UNUSUAL_Z).all(), last=(pl.col("z_last").abs() > MIN_UNUSUAL_Z).all()
    )
    alone = rows.filter(ensemble=listed_first)
    first, last = (alone.filter(pl.col(z).abs() > MIN_UNUSUAL_Z) for z in ("z_first", "z_last"))
    return (
        f"By {name}, {len(first)} of {len(far)} layers lie more than {MIN_UNUSUAL_Z:g} standard deviations from "
        f"{listed_first.replace('_', ' ')} matrices at the first checkpoint and {len(last)} at the last; from every "
        f"ensemble {far.get_column('first').sum()} and {far.get_column('last').sum()}."
    )
