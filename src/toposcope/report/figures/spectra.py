"""Topology against spectral measures of the same hidden states: which correlates with the loss more strongly."""

import textwrap
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from toposcope.analysis.association import STEP
from toposcope.analysis.verdict import LEVEL
from toposcope.report.figures.chart import INK, LABEL, Chart, choose_runs, new_figure, run_styles
from toposcope.report.headline import CLOUD_STATISTICS, CLOUD_TOPOLOGY, Headline, headlines_of
from toposcope.report.material import Material
from toposcope.study.kinds import feature_named

BLOCKS, WILLIAMS, FISHER = "block bootstrap", "Williams", "Fisher z"
SPECTRA = (
    "rankme",
    "effective_rank",
    "top_eigenvalue",
    "anisotropy",
    "two_nn",
    "participation_ratio",
    "eigenspectrum_decay",
    "stable_rank",
    "mean_norm",
)
OTHER_NAMES = {
    "participation_ratio": "Participation ratio",
    "eigenspectrum_decay": "Eigenspectrum decay",
    "stable_rank": "Stable rank",
    "mean_norm": "Mean norm",
}
MAX_RUNS = 4
MAX_TITLE_LETTERS = 54
"""Letters in a line of a panel's title; longer ones are wrapped."""


@dataclass(frozen=True)
class SpectralComparisonCounts:
    """Counts of the comparisons of a topological feature with a spectral measure, by outcome.

    Attributes
    ----------
    total, stronger, weaker, undecided : int
        Comparisons; those in which topology correlates more strongly, less strongly, or neither, by the block
        bootstrap's 95% interval.
    fisher, williams : int
        Comparisons that each test would call significant, in either direction.
    """

    total: int
    stronger: int
    weaker: int
    undecided: int
    fisher: int
    williams: int

    @classmethod
    def of(cls, comparisons: pl.DataFrame) -> "SpectralComparisonCounts":
        """Count the comparisons in each of these classes."""
        rows = spectral_comparisons(comparisons)
        if not len(rows):
            return cls(0, 0, 0, 0, 0, 0)
        blocks = rows.filter(pl.col("low").is_finite(), test=BLOCKS)
        stronger, weaker = len(blocks.filter(pl.col("low") > 0)), len(blocks.filter(pl.col("high") < 0))
        claimed = [len(rows.filter(pl.col("p").fill_nan(1.0) < LEVEL, test=test)) for test in (FISHER, WILLIAMS)]
        return cls(len(blocks), stronger, weaker, len(blocks) - stronger - weaker, *claimed)

    def sentence(self) -> str:
        """State the counts in a sentence."""
        return (
            f"Of {self.total:,} comparisons of a topological feature with a spectral measure of the same hidden "
            f"states, topology correlates with the loss more strongly in {self.stronger:,}, less strongly in "
            f"{self.weaker:,}, and {self.undecided:,} are undecided, by a block bootstrap; Fisher's z would call "
            f"{self.fisher:,} significant and Williams' test {self.williams:,}, but both assume independent "
            "checkpoints."
        )


def spectral_comparisons(comparisons: pl.DataFrame) -> pl.DataFrame:
    """Return the comparisons with spectral measures; the others are with the step."""
    return comparisons.filter(pl.col("other") != STEP) if len(comparisons) else comparisons


def topology_against_spectra_chart(material: Material) -> Chart | None:
    """Draw differences of |rho| with their block-bootstrap intervals, one panel per topological feature."""
    rows = spectral_comparisons(material.tables["comparisons"])
    if not len(rows):
        return None
    present = set(rows.get_column("feature"))
    headlines = [h for h in headlines_of(material.trajectories, CLOUD_TOPOLOGY) if h.key in present]
    shown_rows = rows.filter(pl.col("feature").is_in([h.key for h in headlines]))
    others = [name for name in SPECTRA if len(shown_rows.filter(pl.col("other").str.ends_with(f" {name}")))]
    runs = set(shown_rows.get_column("run"))
    trajectories = [t for t in material.trajectories if t.run in runs]
    if not trajectories or not others:
        return None
    shown, left_out = choose_runs(trajectories, material.runs, MAX_RUNS)
    figure = new_figure(len(headlines) * (len(others) * (0.12 * len(shown) + 0.14) + 0.35) + 1.1)
    panels = figure.subplots(len(headlines), 1, sharex=True, squeeze=False)[:, 0]
    offsets = np.linspace(-0.3, 0.3, len(shown)) if len(shown) > 1 else [0.0]
    for axes, headline in zip(panels, headlines, strict=True):
        for trajectory, offset, (colour, marker) in zip(shown, offsets, run_styles(), strict=False):
            run_rows = shown_rows.filter(run=trajectory.run, feature=headline.key)
            _marks(axes, run_rows, others, float(offset), colour, marker, trajectory.run)
        _finish(axes, headline, others)
    panels[-1].set_xlabel("|rho| of topology minus |rho| of the spectral measure")
    handles, labels = panels[0].get_legend_handles_labels()
    if len(shown) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
    summary = SpectralComparisonCounts.of(material.tables["comparisons"]).sentence()
    return Chart(
        "spectral_against_topology",
        f"{summary} To the right of 0 topology correlates more strongly. Bars: 95% intervals of the block bootstrap; "
        f"filled marks: the interval excludes 0; rings: significant by Fisher's z (p < {LEVEL:g}).{left_out}",
        "Differences of the strength of correlations with the loss, topological features against spectral measures, "
        f"with intervals, one panel per feature. {summary}",
        figure,
    )


def _marks(
    axes: Axes, rows: pl.DataFrame, others: list[str], offset: float, colour: str, marker: str, run: str
) -> None:
    blocks = {feature_named(row["other"]).statistic: row for row in rows.filter(test=BLOCKS).iter_rows(named=True)}
    claimed = rows.filter(pl.col("p").fill_nan(1.0) < LEVEL, test=FISHER).get_column("other")
    rings = {feature_named(other).statistic for other in claimed}
    axes.plot([], [], color=colour, marker=marker, label=run)
    for place, name in enumerate(others):
        row = blocks.get(name)
        if row is None:
            continue
        at = place + offset
        decided = row["low"] > 0 or row["high"] < 0
        axes.hlines(at, row["low"], row["high"], color=colour, linewidth=1.3)
        axes.plot(
            row["difference"], at, marker=marker, markersize=5.5, color=colour, linestyle="none",
            markerfacecolor=colour if decided else "white",
        )  # fmt: skip
        if name in rings:
            axes.plot(
                row["difference"], at, marker="o", markersize=11, color=INK, markerfacecolor="none", linestyle="none"
            )


def _finish(axes: Axes, headline: Headline, others: list[str]) -> None:
    axes.axvline(0, color=INK, linewidth=0.9)
    axes.set_yticks(range(len(others)), [CLOUD_STATISTICS.get(name) or OTHER_NAMES[name] for name in others])
    axes.set_ylim(len(others) - 0.5, -0.5)
    axes.set_title(textwrap.fill(f"{headline.name} against", MAX_TITLE_LETTERS), loc="left", fontsize=LABEL)
    axes.grid(visible=False, axis="y")
