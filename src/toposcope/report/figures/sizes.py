"""Features of runs of different size, at equal step, equal tokens and equal loss."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.wording import joined
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.figures.chart import Chart, logarithmic_if_wide, new_figure, run_styles
from toposcope.report.headline import TRAJECTORIES, Headline, headlines_of
from toposcope.report.material import Material
from toposcope.report.ticks import power_of_ten

OF_STATES = ("rankme", "H0.total", "H1.total")
MAX_RATIO_SPREAD = 1e-6
CLOCKS = {"step": "training step", "tokens": "tokens seen", "loss": "loss (nats)"}
MAX_FEATURES = 3
MAX_RUNS = 6


def cross_size_chart(material: Material) -> Chart | None:
    """Draw a few features of runs of all sizes, matched by step, tokens and loss."""
    known = material.tables["matched"].filter(pl.col("value").is_finite())
    present = set(known.get_column("feature"))
    headlines = [h for h in (*headlines_of(material.trajectories, OF_STATES), *TRAJECTORIES) if h.key in present]
    headlines = headlines[:MAX_FEATURES]
    wanted = known.filter(pl.col("feature").is_in([h.key for h in headlines])).get_column("by").unique()
    same = _tokens_are_steps(material.trajectories)
    clocks = [by for by in CLOCKS if by in wanted and not (same and by == "tokens")]
    if not headlines or not clocks:
        return None
    sizes = dict(known.select("run", "n_parameters").unique(maintain_order=True).iter_rows())
    runs = sorted(sizes, key=lambda run: (sizes[run], run))
    shown_runs = [
        runs[i] for i in np.unique(np.linspace(0, len(runs) - 1, min(len(runs), MAX_RUNS)).round().astype(int))
    ]
    figure = new_figure(1.8 * len(headlines) + 0.8)
    panels = figure.subplots(len(headlines), len(clocks), sharex="col", sharey="row", squeeze=False)
    for row, headline in zip(panels, headlines, strict=True):
        for axes, by in zip(row, clocks, strict=True):
            panel_rows = known.filter(feature=headline.key, by=by)
            for run, (colour, marker) in zip(shown_runs, run_styles(), strict=False):
                rows = panel_rows.filter(run=run).sort("level")
                axes.plot(rows["level"], rows["value"], color=colour, marker=marker, label=run)
            spread = _spread(material.tables["collapse"], headline.key, by)
            axes.set_title("" if spread is None else f"spread {spread:.2f}")
        logarithmic_if_wide(row[0])
        row[0].set_ylabel(headline.axis.replace(" (", "\n("))
    for axes, by in zip(panels[-1], clocks, strict=True):
        _axis(axes, by)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    compared = material.tables["collapse"].filter(pl.col("by").is_in(clocks))
    summary = " ".join(filter(None, (describe_collapse(compared), _of_headlines(compared, headlines))))
    tokens = " All runs see equally many tokens per step: equal tokens are equal steps." if same else ""
    left_out = f" Drawn: {len(shown_runs)} of {len(runs)} runs." if len(shown_runs) < len(runs) else ""
    return Chart(
        "cross_size",
        f"{summary} Spread: the scatter over runs at equal {joined(clocks)}, as a share of the "
        f"whole scatter; 0 where sizes coincide, about 1 where they have nothing in common.{tokens}{left_out}",
        f"Features of {len(shown_runs)} runs of different size, one column each for equal {joined(clocks)}, one "
        f"line per run. {summary}",
        figure,
    )


def _tokens_are_steps(found: Sequence[Trajectory]) -> bool:
    """Return whether all runs see equally many tokens per step, so that equal tokens are equal steps."""
    if not found:
        return False
    ratios = np.concatenate([t.tokens[t.steps > 0] / t.steps[t.steps > 0] for t in found])
    ratios = ratios[np.isfinite(ratios)]
    return bool(len(ratios)) and bool(np.ptp(ratios) <= MAX_RATIO_SPREAD * ratios[0])


def describe_collapse(collapse: pl.DataFrame) -> str:
    """Describe by which clock topological features of different sizes lie nearest, and how often."""
    topology = collapse.filter(pl.col("kind") == TOPOLOGY, pl.col("spread").is_finite())
    compared = topology.filter(pl.col("by").n_unique().over("feature") > 1)
    if not len(compared):
        return "Sizes are compared by one clock only." if len(topology) else ""
    best = compared.sort("spread", maintain_order=True).unique("feature", keep="first", maintain_order=True)
    counts = dict(best.group_by("by").len().iter_rows())
    order = sorted(CLOCKS, key=lambda by: -counts.get(by, 0))
    first, *rest = [f"equal {by} for {counts[by]}" for by in order if counts.get(by)]
    others = f"; at {joined(rest)}" if rest else ""
    median = dict(compared.group_by("by").agg(pl.col("spread").median()).iter_rows())
    medians = joined([f"{median[by]:.2f} at equal {by}" for by in CLOCKS if by in median])
    return f"Sizes lie nearest at {first} of {len(best)} topological features{others}; the median spread is {medians}."


def _spread(collapse: pl.DataFrame, feature: str, by: str) -> float | None:
    rows = collapse.filter(pl.col("spread").is_finite(), feature=feature, by=by)
    return float(rows.get_column("spread")[0]) if len(rows) else None


def _of_headlines(collapse: pl.DataFrame, headlines: list[Headline]) -> str:
    parts = []
    for headline in headlines:
        spreads = {by: s for by in CLOCKS if (s := _spread(collapse, headline.key, by)) is not None}
        if spreads:
            best = min(spreads, key=lambda by: spreads[by])
            parts.append(f"{headline.name} at equal {best} ({spreads[best]:.2f})")
    return f"Least spread: {', '.join(parts)}." if parts else ""


def _axis(axes: Axes, by: str) -> None:
    axes.set_xlabel(CLOCKS[by])
    if by == "loss":
        axes.invert_xaxis()  # training goes to the right
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(power_of_ten)
        axes.xaxis.set_minor_locator(NullLocator())
