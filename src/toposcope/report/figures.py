"""The figures: Matplotlib, sized for the page, legible in grey and to the colour-blind."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toposcope.analysis import Analysis
from toposcope.analysis.analysis import sizes_of_complete
from toposcope.analysis.trajectories import Trajectory
from toposcope.report.headline import HEADLINES, TARGETS, TRAJECTORIES
from toposcope.report.verdict import primary

# Okabe & Ito 2008, in an order that keeps neighbours apart; markers tell runs apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SUSPECT = "#B00020"
STYLE: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "toposcope",
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure with its file name, the question it answers, and a description for those who cannot see it."""

    name: str
    caption: str
    alt: str
    figure: Figure


def draw(analysis: Analysis, log: pl.DataFrame, runs: pl.DataFrame, findings: pl.DataFrame) -> list[Drawn]:
    """Draw every figure the study has data for."""
    with mpl.rc_context(STYLE):
        suspects = _suspects(findings)
        makers = (
            _losses(analysis, log, suspects),
            _topology(analysis, suspects),
            _association(analysis),
            _scaling(analysis, runs),
        )
        return [drawn for drawn in makers if drawn is not None]


def _looks() -> Iterator[tuple[str, str]]:
    return iter(zip(cycle(COLOURS), cycle(MARKERS), strict=False))


def _suspects(findings: pl.DataFrame) -> list[int]:
    """Return the steps of checkpoints that the doctor found at fault, in any run."""
    steps = findings.filter(severity="fault").get_column("steps").explode().drop_nulls()
    return sorted(set(steps.to_list()))


def _mark(axes: Axes, suspects: list[int]) -> str:
    """Mark suspect steps on the axis; return what the caption says of the marks."""
    if not suspects:
        return ""
    axes.plot(
        suspects,
        [0] * len(suspects),
        transform=axes.get_xaxis_transform(),
        linestyle="none",
        marker="^",
        color=SUSPECT,
        markersize=9,
        clip_on=False,
        zorder=5,
    )
    return " Triangles on the axis: checkpoints that are not what they claim to be (see what the doctor found)."


def _losses(analysis: Analysis, log: pl.DataFrame, suspects: list[int]) -> Drawn | None:
    with_loss = [t for t in analysis.trajectories if t.targets]
    if not with_loss:
        return None
    figure = Figure(figsize=(8, 4.2))
    axes = figure.subplots()
    for trajectory, (colour, marker) in zip(analysis.trajectories, _looks(), strict=False):
        if trajectory not in with_loss:
            continue
        rows = log.filter(pl.col("run") == trajectory.run, pl.col("loss").is_finite())
        axes.plot(rows.get_column("step"), rows.get_column("loss"), color=colour, alpha=0.18, linewidth=0.8)
        target = next(iter(trajectory.targets.values()))
        axes.plot(trajectory.steps, target, color=colour, marker=marker, markersize=3.5, label=trajectory.run)
    names = sorted({TARGETS[next(iter(t.targets))] for t in with_loss})
    axes.set(xlabel="training step", ylabel="loss (nats per token)")
    figure.legend(loc="outside upper center", ncols=min(5, len(with_loss)))
    marks = _mark(axes, suspects)
    return Drawn(
        "losses",
        f"How did the runs train? Points: {' or '.join(names)} at each checkpoint; faint line: every training batch."
        + marks,
        "Loss against training step, one line a run. " + _final_values(with_loss),
        figure,
    )


def _final_values(found: list[Trajectory]) -> str:
    parts = [f"{t.run} ends at {next(iter(t.targets.values()))[-1]:.3f}" for t in found]
    return "; ".join(parts) + "."


def _topology(analysis: Analysis, suspects: list[int]) -> Drawn | None:
    shown = [h for h in TRAJECTORIES if any(h.feature in t.features for t in analysis.trajectories)]
    if not shown:
        return None
    figure = Figure(figsize=(8, 2.5 * len(shown) + 0.5))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, headline in zip(panels, shown, strict=True):
        for trajectory, (colour, marker) in zip(analysis.trajectories, _looks(), strict=False):
            if headline.feature in trajectory.features:
                values = trajectory.features[headline.feature]
                axes.plot(trajectory.steps, values, color=colour, marker=marker, markersize=3.5, label=trajectory.run)
        axes.set_ylabel(headline.axis.replace(" (", "\n("))
    panels[-1].set_xlabel("training step")
    marks = _mark(panels[-1], suspects)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(labels)))
    return Drawn(
        "topology",
        "How does topology move during training? Exact, on every weight; totals are sums over the analysed layers."
        + marks,
        f"{', '.join(h.name for h in shown)} against training step, one line a run.",
        figure,
    )


COLUMNS = (
    ("rho", "feature"),
    ("rho_step", "step\nalone"),
    ("rho_given_step", "feature\ngiven step"),
    ("rho_given_all", "feature given\nall clocks"),
)


def _association(analysis: Analysis) -> Drawn | None:
    rows = primary(analysis)
    names = {h.feature: h.name for h in HEADLINES}
    rows = rows.filter(pl.col("feature").is_in(names), pl.col("rho").is_finite())
    if not len(rows):
        return None
    features = [f for f in names if f in set(rows.get_column("feature"))]
    runs = rows.get_column("run").unique(maintain_order=True).to_list()
    across = min(3, len(runs))
    down = -(-len(runs) // across)
    figure = Figure(figsize=(2 + 2.1 * across, down * (0.4 * len(features) + 1.6)))
    panels = figure.subplots(down, across, squeeze=False)
    for i, axes in enumerate(panels.flat):
        if i < len(runs):
            _heat_map(axes, rows.filter(run=runs[i]), features, runs[i])
            axes.set_yticks(range(len(features)), [names[f] for f in features] if i % across == 0 else [])
        else:
            axes.set_axis_off()
    colours = mpl.cm.ScalarMappable(mpl.colors.Normalize(-1, 1), "PuOr")
    label = "Spearman's rho with the loss"
    figure.colorbar(
        colours,
        ax=panels,
        label=label,
        location="top",
        fraction=0.03,
        aspect=50,
        shrink=0.6,
        ticks=[-1, -0.5, 0, 0.5, 1],
    )
    return Drawn(
        "association",
        "Does a feature say more about the loss than the step does? Spearman's rho with the loss: of the feature, of "
        "the step, and of the feature once the step, or every clock (step, weight norm, cumulative learning rate, as "
        "far as they are known), is given. "
        "Hatched: not defined, because the clock ranks the checkpoints exactly as the feature or the loss does.",
        "Heat map of rank correlations with the loss, a row a feature, a panel a run; the table below has the numbers.",
        figure,
    )


def _heat_map(axes: Axes, rows: pl.DataFrame, features: list[str], title: str) -> None:
    by_feature = {row["feature"]: row for row in rows.iter_rows(named=True)}
    cells = np.array([[by_feature.get(f, {}).get(c, np.nan) for c, _ in COLUMNS] for f in features], dtype=float)
    axes.imshow(cells, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(cells):
        if np.isfinite(value):
            colour = "white" if abs(value) > 0.65 else "black"
            axes.text(j, i, f"{value:.2f}".replace("-", "−"), ha="center", va="center", color=colour, fontsize=9)
        else:
            box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="white", edgecolor="#999999", hatch="///", linewidth=0)
            axes.add_patch(box)
    axes.set_xticks(range(len(COLUMNS)), [label for _, label in COLUMNS], fontsize=9, rotation=90)
    axes.set_title(title, fontsize=10.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _plain_ticks(axes: Axes, sizes: list[int]) -> None:
    """Mark the sizes that were run, and a few round values, where powers of ten would be too far apart."""
    axes.set_xticks(sizes, [f"{size / 1000:.1f}k" if size < 1e6 else f"{size / 1e6:.1f}M" for size in sizes])
    axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    low, high = axes.get_ylim()
    found = mpl.ticker.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    ticks = [float(tick) for tick in np.asarray(found) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())


def _scaling(analysis: Analysis, runs: pl.DataFrame) -> Drawn | None:
    laws = {row["quantity"]: row for row in analysis.scaling.iter_rows(named=True)}
    target = next((name for name in TARGETS if name in laws), None)
    wanted = [(target, f"final {TARGETS[target]} (nats)")] if target else []
    wanted += [(h.feature, h.axis) for h in TRAJECTORIES if h.feature in laws]
    if not wanted:
        return None
    sizes = sizes_of_complete(analysis.trajectories, runs)
    figure = Figure(figsize=(8, 3.2 * -(-len(wanted) // 2)))
    panels = figure.subplots(-(-len(wanted) // 2), 2, squeeze=False)
    for axes, (quantity, label) in zip(panels.flat, wanted, strict=False):
        law = laws[quantity]
        for trajectory, (colour, marker) in zip(analysis.trajectories, _looks(), strict=False):
            values = {**trajectory.features, **trajectory.targets}
            if trajectory.run in sizes and quantity in values:
                value = values[quantity][-1]
                axes.plot(
                    sizes[trajectory.run], value, marker=marker, color=colour, linestyle="none", label=trajectory.run
                )
        extent = np.array([min(sizes.values()), max(sizes.values())], dtype=float)
        axes.plot(extent, law["factor"] * extent ** law["exponent"], color="#666666", linestyle="--", zorder=0)
        title = f"N^{law['exponent']:+.3f}, R² {law['r_squared']:.3f}".replace("-", "−")
        axes.set(xscale="log", yscale="log", xlabel="parameters N", ylabel=label.replace(" (", "\n("))
        axes.set_title(title, fontsize=10.5)
        _plain_ticks(axes, sorted(set(sizes.values())))
    for axes in panels.flat[len(wanted) :]:
        axes.set_axis_off()
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(labels)))
    n = laws[wanted[0][0]]["n_sizes"]
    return Drawn(
        "scaling",
        f"How do final values change with size? Dashed: power law over {n} sizes"
        + ("; so few sizes cannot support a p-value below .05." if n < 6 else "."),
        "Final loss and topology against number of parameters, with fitted power laws; the exponents are in the table.",
        figure,
    )
