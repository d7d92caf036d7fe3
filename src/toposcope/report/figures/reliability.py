"""Reliability diagram: how often scaling won against its predicted probability."""

from collections.abc import Mapping, Sequence

from toposcope.forecasting.decision.calibration import Bin, calibration_error
from toposcope.forecasting.decision.decision import CONTINUE_BELOW, SCALE_ABOVE
from toposcope.report.figures.chart import COLOURS, MARKERS, SOFT, Chart, legend, new_figure

MAX_MARK_SIZE = 14.0
MIN_MARK_SIZE = 3.0
"""Points: the size of a mark that holds all pairs, and of one that holds few."""


def reliability_chart(bins_by_name: Mapping[str, Sequence[Bin]], about: str) -> Chart:
    """Draw the share of decisions in which scaling was better against the predicted probability.

    Parameters
    ----------
    found : mapping
        Bins by what the probabilities are, such as before and after recalibration.
    about : str
        Which decisions, for the caption.
    """
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=SOFT, linestyle="--", zorder=0)
    axes.axvspan(100 * CONTINUE_BELOW, 100 * SCALE_ABOVE, color=SOFT, alpha=0.08, linewidth=0)
    axes.text(50, 2, "undecided", color=SOFT, ha="center", va="bottom")
    for (name, bins), colour, marker in zip(bins_by_name.items(), COLOURS, MARKERS, strict=False):
        said, came = [100 * b.said for b in bins], [100 * b.came for b in bins]
        axes.plot(said, came, color=colour, linewidth=1.0, marker=marker, markersize=MIN_MARK_SIZE, label=name)
        areas = [(MIN_MARK_SIZE + (MAX_MARK_SIZE - MIN_MARK_SIZE) * b.weight**0.5) ** 2 for b in bins]
        axes.scatter(said, came, s=areas, color=colour, marker=marker, alpha=0.6)
    axes.set(xlim=(-4, 104), ylim=(-4, 104))
    axes.set(xlabel="predicted probability that scaling wins (%)", ylabel="share in which it won (%)")
    legend(figure, axes)
    off = {name: 100 * calibration_error(list(bins)) for name, bins in bins_by_name.items()}
    summary = "; ".join(f"{name}: {each:.1f} points off on average" for name, each in off.items())
    return Chart(
        "reliability",
        f"{summary[:1].upper()}{summary[1:]}. {about} Calibrated probabilities lie on the dashed line. The larger a "
        "mark, the more decisions it stands for; in the shaded range the decision is left open.",
        f"Share of decisions in which scaling won against its predicted probability. {summary}.",
        figure,
    )
