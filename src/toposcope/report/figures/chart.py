"""A chart with its caption, and what all charts share: style, axes over training, how numbers are written."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.ticks import power_of_ten
from toposcope.typing import Vector

WIDTH = 6.0
"""Width of a figure in inches. Narrow on purpose: on a phone of 375 px the text is still about 9 px high."""
MAX_RUNS = 6
MIN_LOG_AXIS_RATIO = 50
"""Positive values that differ by more than this factor are drawn on a logarithmic axis."""
EQUAL_CONTRAST_LUMINANCE = 0.179
"""Relative luminance of a background on which black and white have the same contrast."""
MAX_STEP_RATIO = 4
"""Runs whose numbers of steps differ by more than this factor are drawn over the share of their steps."""
LABEL = 10.5
"""Font size of labels in points."""
SMALL = 9.5
"""Font size of ticks and legends in points; nothing is set smaller."""

# Okabe & Ito 2008, in an order that separates neighbours; markers distinguish runs without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SUSPECT = "#B00020"
INK = "#1b1f24"
SOFT = "#57606a"
FAINT = "#8c959f"
STYLE: dict[Any, Any] = {
    "font.size": LABEL,
    "axes.labelsize": LABEL,
    "axes.titlesize": LABEL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "lines.markersize": 3.5,
    "lines.linewidth": 1.3,
    "image.cmap": "cividis",
    "image.interpolation": "none",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "toposcope",
}
REPRODUCIBLE_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata left out of each kind of file: no date and no version, so that equal figures are equal bytes."""


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure with its caption.

    Attributes
    ----------
    name : str
        Name of its files.
    caption : str
        The result first, with its numbers; then what is drawn.
    alt : str
        A description for readers who cannot see the figure.
    figure : Figure
    """

    name: str
    caption: str
    alt: str
    figure: Figure


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of the report's width; inches."""
    return Figure(figsize=(width, height))


def run_styles() -> Iterator[tuple[str, str]]:
    """Return an endless sequence of colours and markers, one pair per run."""
    return iter(zip(cycle(COLOURS), cycle(MARKERS), strict=False))


def choose_runs(
    trajectories: Sequence[Trajectory], runs: pl.DataFrame, max_runs: int = MAX_RUNS
) -> tuple[list[Trajectory], str]:
    """Choose the runs that fit in a figure, from the smallest to the largest model.

    Returns
    -------
    chosen : list of Trajectory
        All of them, in the study's order, if there are at most `max_runs`; else evenly spaced in the order of size.
    note : str
        For the caption: what was left out; empty if nothing was.
    """
    if len(trajectories) <= max_runs:
        return list(trajectories), ""
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    ordered = sorted(trajectories, key=lambda t: sizes.get(t.run) or 0)
    places = np.linspace(0, len(ordered) - 1, max_runs).round().astype(int) if max_runs > 1 else [len(ordered) - 1]
    which = "the largest" if max_runs == 1 else "from the smallest to the largest model"
    note = f" Drawn: {max_runs} of {len(trajectories)} runs, {which}; the tables hold all."
    return [ordered[i] for i in places], note


def largest_run(trajectories: Sequence[Trajectory], runs: pl.DataFrame) -> Trajectory:
    """Return the run with the most parameters among those with at least half as many checkpoints as any."""
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    max_checkpoints = max(len(t.steps) for t in trajectories)
    return max((t for t in trajectories if 2 * len(t.steps) >= max_checkpoints), key=lambda t: sizes.get(t.run) or 0)


class TrainingAxis:
    """The horizontal axis of figures over training.

    It is the step, or the share of the run's steps where runs on one axis have very different lengths.

    Parameters
    ----------
    shown : sequence of Trajectory
    findings : polars.DataFrame
        `Study.findings`.
    logarithmic : bool
        The axis is the step in any case; `scale` makes it logarithmic.
    """

    def __init__(self, shown: Sequence[Trajectory], findings: pl.DataFrame, *, logarithmic: bool = False) -> None:
        self._last = {t.run: max(int(t.steps[-1]), 1) for t in shown}
        self._findings = findings
        self.in_steps = logarithmic or max(self._last.values()) <= MAX_STEP_RATIO * min(self._last.values())
        self.label = "training step" if self.in_steps else "share of the run's steps, %"

    def scale(self, axes: Axes, max_ticks: int = 6) -> None:
        """Make the axis logarithmic from step 1 on, with step 0 beside it."""
        last = max(self._last.values())
        powers = [10**k for k in range(int(np.log10(last)) + 1)]
        ticks = [0, *powers[:: -(-len(powers) // (max_ticks - 1))]]
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        axes.set_xticks(ticks, ["0", *(power_of_ten(tick) for tick in ticks[1:])])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.3, last * 1.3)

    def of(self, run: str, steps: Any) -> Vector:
        """Return the positions of a run's steps on the axis."""
        at = np.asarray(steps, dtype=np.float64)
        return at if self.in_steps else 100 * at / self._last[run]

    def mark_suspects(self, axes: Axes, runs: Iterable[str] | None = None) -> str:
        """Mark checkpoints in which the doctor found a fault; return the sentence that explains the marks."""
        suspects: list[float] = []
        for run in self._last if runs is None else runs:
            rows = self._findings.filter(severity="fault", run=run)
            suspects += self.of(run, rows.get_column("steps").explode().drop_nulls().unique().sort()).tolist()
        if not suspects:
            return ""
        axes.plot(
            suspects, [0] * len(suspects), transform=axes.get_xaxis_transform(), linestyle="none", marker="^",
            color=SUSPECT, markersize=9, clip_on=False, zorder=5,
        )  # fmt: skip
        return " Triangles on the axis: checkpoints that are not what they claim to be (see what the doctor found)."


def legend(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Put one legend above all panels, with the labels of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(labels)))


def logarithmic_if_wide(axes: Axes) -> None:
    """Make the vertical axis logarithmic if small values could not be distinguished on a linear one."""
    values = np.concatenate([np.ravel(np.asarray(line.get_ydata(), dtype=np.float64)) for line in axes.lines])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > MIN_LOG_AXIS_RATIO * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(power_of_ten)
        axes.yaxis.set_minor_locator(NullLocator())


def ink_on(background: Iterable[float]) -> str:
    """Return black or white, whichever has the higher contrast (WCAG 2) on a colour; red, green, blue from 0 to 1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    return "black" if np.dot(linear, [0.2126, 0.7152, 0.0722]) > EQUAL_CONTRAST_LUMINANCE else "white"


def signed(value: float, digits: int = 2) -> str:
    """Write a number with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def number(value: float) -> str:
    """Write a number to three significant digits."""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
    return text.replace("-", "−")


def percent(before: float, after: float) -> str:
    """Write the change of a positive quantity in percent, or from 0 as such; one that rounds to 0 is under 0.5%."""
    if not before > 0:
        return f"from 0 to {number(after)}"
    change = 100 * (after / before - 1)
    if round(change) == 0:
        return "under 0.5%" if change else "0%"
    return f"{change:+,.0f}%".replace("-", "−")


def span(values: Iterable[float], digits: int = 2) -> str:
    """Write one value, or the lowest and the highest of several."""
    ordered = sorted(values)
    low, high = signed(ordered[0], digits), signed(ordered[-1], digits)
    return low if low == high else f"{low} to {high}"


def runs_of(n: int, total: int) -> str:
    """Write a number of runs out of all."""
    if total == 1:
        return "the run" if n else "no run"
    return f"all {total} runs" if n == total else f"{n or 'none'} of {total} runs"


def first_last(values: Vector) -> tuple[float, float] | None:
    """Return the first and the last finite value; None with fewer than two."""
    known = values[np.isfinite(values)]
    return (float(known[0]), float(known[-1])) if len(known) > 1 else None
