"""Errors of the forecasters, and coverage of their intervals, over the share of the run seen."""

from collections.abc import Iterator

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.intervals import LEVEL
from toposcope.report.figures.chart import COLOURS, INK, MARKERS, SOFT, Chart, legend, new_figure
from toposcope.report.ticks import plain_or_power

ACCEPTED_COVERAGE = (0.85, 0.95)
"""Range of the coverage of 90% intervals that is shaded."""
STYLES = ("-", "--", ":")


def error_chart(scores: pl.DataFrame) -> Chart:
    """Draw the median and the 90th percentile of the relative error of each forecaster.

    Parameters
    ----------
    scores : polars.DataFrame
        From `toposcope.forecasting.scores.scores`.
    """
    figure = new_figure(6.4)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, column, label in zip(
        panels, ("relative_median", "relative_p90"), ("median", "90th percentile"), strict=True
    ):
        _lines(axes, scores, column)
        axes.set(ylabel=f"relative error,\n{label} (%)", yscale="log")
        axes.yaxis.set_major_formatter(plain_or_power)
        low, high = axes.get_ylim()
        ticks = [k * 10.0**e for e in range(-4, 4) for k in (1, 2, 5)]
        axes.set_yticks([tick for tick in ticks if low <= tick <= high])
        axes.yaxis.set_minor_locator(NullLocator())
    _share(panels[1], scores)
    legend(figure, panels[0], columns=4)
    summary = "; ".join(
        f"{100 * row['fraction']:.3g}% seen {100 * row['relative_median']:.2f}%" for row in _default(scores)
    )
    return Chart(
        "backtest-error",
        f"Median error of the default forecast: {summary}. Errors are relative to the final loss; each run was held "
        "out together with all similar runs. Vertical axes are logarithmic.",
        f"Relative error of each forecaster over the share of the run seen. Default: {summary}.",
        figure,
    )


def coverage_chart(scores: pl.DataFrame) -> Chart:
    """Draw coverage and width of the 90% intervals of each forecaster."""
    figure = new_figure(6.4)
    held, wide = figure.subplots(2, 1, sharex=True)
    held.axhspan(100 * ACCEPTED_COVERAGE[0], 100 * ACCEPTED_COVERAGE[1], color=SOFT, alpha=0.12, linewidth=0)
    held.axhline(100 * LEVEL, color=SOFT, linewidth=0.9)
    _lines(held, scores, "coverage")
    _lines(wide, scores, "width")
    held.set(ylabel="final losses in their\n90% interval (%)")
    held.set_ylim(max(0.0, min(held.get_ylim()[0], 78)), 102)
    held.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    wide.set(ylabel="width of the interval\n(% of the loss)", ylim=(0, None))
    _share(wide, scores)
    legend(figure, held, columns=4)
    summary = "; ".join(
        f"{100 * row['fraction']:.3g}% seen {100 * row['coverage']:.0f}%, {100 * row['width']:.1f}% wide"
        for row in _default(scores)
    )
    return Chart(
        "backtest-coverage",
        f"Coverage and width of the default forecast's 90% intervals: {summary}. Shaded: coverage of "
        f"{100 * ACCEPTED_COVERAGE[0]:.0f} to {100 * ACCEPTED_COVERAGE[1]:.0f}%.",
        f"Coverage and width of the intervals of each forecaster over the share of the run seen. Default: {summary}.",
        figure,
    )


def _lines(axes: Axes, scores: pl.DataFrame, column: str) -> None:
    """Draw a column in percent, one line per forecaster, the default above the others."""
    for name, colour, marker, style in _looks(scores):
        rows = scores.filter(forecaster=name).sort("fraction")
        is_default = name == DEFAULT
        axes.plot(
            100 * rows["fraction"].to_numpy(), 100 * rows[column].to_numpy(), color=colour, marker=marker,
            linestyle=style, linewidth=2.4 if is_default else 1.0, zorder=5 if is_default else 2, label=name,
        )  # fmt: skip


def _looks(scores: pl.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Yield each forecaster with its colour, marker and line style, the default first."""
    names = scores["forecaster"].unique(maintain_order=True).to_list()
    if DEFAULT in names:
        yield DEFAULT, INK, "o", "-"
    others = sorted(name for name in names if name != DEFAULT)
    for place, name in enumerate(others):
        kind = place % (len(COLOURS) - 1)
        yield name, COLOURS[kind], MARKERS[1 + kind], STYLES[place // (len(COLOURS) - 1) % len(STYLES)]


def _share(axes: Axes, scores: pl.DataFrame) -> None:
    fractions = 100 * np.array(sorted(scores["fraction"].unique()))
    axes.set_xticks(fractions.round(6), [f"{each:.3g}" for each in fractions])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("share of the run seen (%)")


def _default(scores: pl.DataFrame) -> Iterator[dict[str, float]]:
    yield from scores.filter(forecaster=DEFAULT).sort("fraction").to_dicts()
