"""The forecast of a run: the loss seen, the predicted loss, and the planned learning rate."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from toposcope.forecasting.forecast_report import ForecastReport
from toposcope.forecasting.forecaster import Forecast, LoggedRun
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.intervals import band
from toposcope.logs import Log
from toposcope.report.figures.chart import COLOURS, FAINT, INK, SMALL, SOFT, Chart, legend, new_figure
from toposcope.report.rendering import PLACES
from toposcope.typing import Vector

MAX_SIBLINGS = 12
MAX_POINTS = 250
"""Longer logs are drawn as the median of each of this many bins of steps."""
EARLY_SHARE = 0.25
"""Share of the steps seen that may lie above the figure: the first fall would hide the rest."""
SEEN, PREDICTED = COLOURS[0], COLOURS[1]
MIN_LABEL_GAP = 0.052
"""Distance between two names at the right of the panel, as a share of its height."""


def forecast_chart(report: ForecastReport) -> Chart:
    """Draw the loss seen, the predicted curve with its band, siblings, and the end of each forecaster."""
    figure = new_figure(5.2)
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    log, default = report.log, report.default
    siblings = _nearest(report)
    for place, run in enumerate(siblings):
        # stretched to the steps planned: at equal shares of their steps runs are compared
        share = report.schedule.last_step / run.schedule.last_step
        steps, values = _smooth(run.log)
        loss.plot(
            steps * share, values, color=FAINT, linewidth=0.7, alpha=0.7, zorder=1,
            label="siblings" if place == 0 else "_",
        )  # fmt: skip
    steps, values = _smooth(log)
    if len(steps) < len(log.steps):
        thin = max(1, len(log.steps) // 2000)
        loss.plot(log.steps[::thin], log.loss[::thin], color=SEEN, linewidth=0.5, alpha=0.2, zorder=2)
    loss.plot(steps, values, color=SEEN, label="seen", zorder=4, marker="o" if len(steps) == 1 else None)
    if default is not None:
        low, high = band(default)
        loss.fill_between(default.steps, low, high, color=PREDICTED, alpha=0.2, linewidth=0, zorder=3)
        loss.plot(
            default.steps,
            default.curve,
            color=PREDICTED,
            linestyle="--",
            zorder=5,
            label=f"forecast ({report.chosen})",
        )
    bottom, top = _limits(report)
    loss.set(ylabel=f"loss ({log.unit})", ylim=(bottom, top))
    if report.results is not None:
        _ends(loss, report, bottom, top)
    _rate(rate, report)
    legend(figure, loss, columns=3)
    legend_text = "Solid: what was seen"
    if len(log.steps) > MAX_POINTS:
        legend_text += ", medians over steps; faint: single rows"
    if default is not None:
        legend_text += "; dashed: the default forecast with its 90% band; at the right, the end of each forecaster"
    if siblings:
        which = f"the {len(siblings)} of {len(report.siblings)} siblings nearest" if _some(report) else "siblings"
        legend_text += f"; thin: {which}, stretched to the same length"
    below = "Below: the learning rate as a share of its peak, warm-up left out."
    headline = report.headline()
    headline = f"{headline[:1].upper()}{headline[1:]}."
    return Chart(
        "forecast", f"{headline} {legend_text}. {below}", f"Loss over training steps. {headline} {below}", figure
    )


def _some(report: ForecastReport) -> bool:
    return len(report.siblings) > MAX_SIBLINGS


def _nearest(report: ForecastReport) -> list[LoggedRun]:
    """Return the siblings in the log's unit whose loss is nearest where it ends, those of its family first."""
    log = report.log
    now = log.final_loss()[0]

    def off(run: LoggedRun) -> tuple[bool, float]:
        at = log.steps[-1] / report.schedule.last_step * run.schedule.last_step
        there = np.interp(at, *_smooth(run.log))
        return run.log.family != log.family, abs(float(np.log(there / now)))

    alike = [run for run in report.siblings if run.log.unit == log.unit]
    return sorted(alike, key=off)[:MAX_SIBLINGS]


def _smooth(log: Log) -> tuple[Vector, Vector]:
    """Return steps and losses; of many, the median of each of 250 bins, which no spike moves."""
    steps = log.steps.astype(np.float64)
    if len(steps) <= MAX_POINTS:
        return steps, log.loss
    parts = np.array_split(np.arange(len(steps)), MAX_POINTS)
    return np.array([steps[p].mean() for p in parts]), np.array([np.median(log.loss[p]) for p in parts])


def _limits(report: ForecastReport) -> tuple[float, float]:
    """Return the ends of the vertical axis: the forecasts, the band, and what was seen but for its first quarter."""
    steps, values = _smooth(report.log)
    late = values[steps >= EARLY_SHARE * steps[-1]]
    shown = [float(late.min()), float(late.max())]
    if report.results is not None and report.default is not None:
        default = report.default
        shown += [default.low, default.high]
        # a forecaster that is far off does not press the others together
        reach = max(shown) - min(shown)
        ends = [each.loss for each in report.results.forecasts.values()]
        shown += [end for end in ends if min(shown) - reach < end < max(shown) + reach]
    low, high = min(shown), max(shown)
    margin = 0.05 * (high - low) if high > low else 0.05 * high
    return low - margin, high + margin


def _ends(axes: Axes, report: ForecastReport, bottom: float, top: float) -> None:
    """Mark where each forecaster ends, with its name at the right; names are moved apart."""
    assert report.results is not None
    found: list[tuple[str, Forecast]] = sorted(
        ((name, each) for name, each in report.results.forecasts.items() if name != DEFAULT),
        key=lambda pair: pair[1].loss,
    )
    height = top - bottom
    wanted = np.array([(np.clip(each.loss, bottom, top) - bottom) / height for _, each in found])
    last = report.schedule.last_step
    for (name, each), place, at in zip(found, _apart(wanted), wanted, strict=True):
        is_default = name == report.chosen
        colour = PREDICTED if is_default else SOFT
        axes.plot(
            [last], [np.clip(each.loss, bottom, top)], marker="_", markersize=9, markeredgewidth=2 if is_default else 1,
            color=colour, clip_on=False, linestyle="none", zorder=6,
        )  # fmt: skip
        beyond = "" if bottom <= each.loss <= top else f" {each.loss:.3g}"
        axes.annotate(
            f"{name}{beyond}", xy=(1, at), xytext=(1.07, place), xycoords="axes fraction", textcoords="axes fraction",
            color=colour if is_default else INK, fontsize=SMALL, fontweight="bold" if is_default else None, va="center",
            annotation_clip=False, arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "relpos": (0, 0.5)},
        )  # fmt: skip


def _apart(wanted: Vector) -> Vector:
    """Move ascending places in [0, 1] apart, as little as may be, and keep their order."""
    gaps = MIN_LABEL_GAP * np.arange(len(wanted))
    # isotonic regression of the places less the gaps: pools of neighbours share their mean
    pools: list[list[float]] = []
    for value in wanted - gaps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    placed = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + gaps
    return np.asarray(np.clip(placed, gaps, 1 - gaps[::-1]).round(PLACES), dtype=np.float64)


def _rate(axes: Axes, report: ForecastReport) -> None:
    """Draw the learning rate: what is past, and what is planned."""
    schedule, last = report.schedule, int(report.log.steps[-1])
    look: dict[str, Any] = {"color": INK, "linewidth": 0.9}
    steps = np.unique(np.linspace(schedule.warm_up, schedule.last_step, 600).round().astype(np.int64))
    share = schedule.rates[steps] / schedule.peak
    past = steps <= last
    axes.plot(steps[past], share[past], **look)
    axes.plot(steps[~past], share[~past], linestyle=":", **look)
    axes.set(ylim=(-0.05, 1.1), xlabel="training step", ylabel="learning\nrate", xlim=(0, schedule.last_step))
    axes.set_yticks([0, 0.5, 1])
