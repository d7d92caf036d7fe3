"""Whether probabilities hold: what was said against what came true."""

from collections.abc import Mapping, Sequence

from toposcope.forecasting.decision.calibration import Bin, calibration_error
from toposcope.forecasting.decision.decision import CONTINUE_BELOW, SCALE_ABOVE
from toposcope.report.figures.drawn import COLOURS, MARKERS, SOFT, Drawn, legend, new_figure

LARGEST = 14.0
SMALLEST = 3.0
"""Points: the size of a mark that holds all pairs, and of one that holds few."""


def reliability(found: Mapping[str, Sequence[Bin]], about: str) -> Drawn:
    """Draw the share of decisions in which scaling was better against the probability said before.

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
    for (name, bins), colour, marker in zip(found.items(), COLOURS, MARKERS, strict=False):
        said, came = [100 * b.said for b in bins], [100 * b.came for b in bins]
        axes.plot(said, came, color=colour, linewidth=1.0, marker=marker, markersize=SMALLEST, label=name)
        areas = [(SMALLEST + (LARGEST - SMALLEST) * b.weight**0.5) ** 2 for b in bins]
        axes.scatter(said, came, s=areas, color=colour, marker=marker, alpha=0.6)
    axes.set(xlim=(-4, 104), ylim=(-4, 104))
    axes.set(xlabel="probability said that scaling wins (%)", ylabel="share in which it won (%)")
    legend(figure, axes)
    off = {name: 100 * calibration_error(list(bins)) for name, bins in found.items()}
    told = "; ".join(f"{name}: {each:.1f} points off on average" for name, each in off.items())
    return Drawn(
        "reliability",
        f"{told[:1].upper()}{told[1:]}. {about} On the dashed line a probability holds. The larger a mark, the more "
        "decisions it stands for; in the shaded range nothing is decided.",
        f"Share of decisions in which scaling won against the probability said. {told}.",
        figure,
    )
