"""Reliability diagram: how often scaling won against its predicted probability."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.calibration import Bin, calibration_error
from toposcope.forecasting.decision.decision import CONTINUE_BELOW, SCALE_ABOVE

HEIGHT = 320


def reliability_chart(bins_by_name: Mapping[str, Sequence[Bin]], n_pairs: int) -> Chart:
    """Draw the share of decisions in which scaling was better against the predicted probability.

    Parameters
    ----------
    bins_by_name : mapping
        Bins by what the probabilities are, such as before and after recalibration; the last are those that are used.
    n_pairs : int
        Number of decisions.
    """
    rows = [
        {"by": name, "predicted": b.said, "won": b.came, "share": b.weight, "pairs": b.n}
        for name, bins in bins_by_name.items()
        for b in bins
    ]
    percent, scale = alt.Axis(format="%"), alt.Scale(domain=[-0.04, 1.04], nice=False)
    x = alt.X("predicted:Q", title="predicted probability that scaling wins", axis=percent, scale=scale)
    y = alt.Y("won:Q", title="share in which it won", axis=percent, scale=scale)
    diagonal = alt.Chart(pl.DataFrame({"predicted": [0.0, 1.0], "won": [0.0, 1.0]}))
    undecided = pl.DataFrame({"from": [CONTINUE_BELOW], "to": [SCALE_ABOVE], "word": ["undecided"], "at": [0.5]})
    base = alt.Chart(pl.DataFrame(rows)).encode(
        x,
        y,
        color=alt.Color("by:N", sort=None, title=None, legend=alt.Legend(columns=1)),
        tooltip=["by", "predicted", "won", "pairs"],
    )
    shaded = alt.Chart(undecided)
    figure = alt.LayerChart(layer=[
        shaded.mark_rect(color="gray", opacity=0.1).encode(x="from:Q", x2="to:Q"),
        shaded.mark_text(baseline="bottom").encode(x="at:Q", y=alt.value(16), text="word"),
        diagonal.mark_line(strokeDash=[4, 4], color="gray", strokeWidth=1).encode(x, y),
        base.mark_line(strokeWidth=1),
        base.mark_point(filled=True, opacity=0.7).encode(size=alt.Size("share:Q", legend=None)),
    ]).properties(height=HEIGHT)  # fmt: skip
    off = {name: 100 * calibration_error(list(bins)) for name, bins in bins_by_name.items()}
    title = f"Predicted probabilities are off by {list(off.values())[-1]:.1f} points on average"
    caption = (
        f"{n_pairs:,} pairs of runs at equal compute, held out from law and calibration; a larger mark stands for more "
        "pairs. Calibrated probabilities lie on the dashed line."
    )
    each = "; ".join(f"{name}: {value:.1f} points off" for name, value in off.items())
    return Chart("reliability", title, caption, f"Reliability diagram of the predicted probabilities. {each}.", figure)
