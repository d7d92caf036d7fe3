"""Lead times as one picture: when each quantity's first alarm comes, run by run, from the onset."""

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import zero_line
from toposcope_experiments.early_warnings.referee import AFTER, BEFORE, LOSS
from toposcope_experiments.early_warnings.trials import EarlyWarningData

ROW_HEIGHT = 22


def lead_chart(data: EarlyWarningData) -> Chart | None:
    """Draw the first alarm of each held-out run, by quantity, with the median of those that alarm."""
    leads = data.tables["leads"]
    if not len(leads):
        return None
    order = data.tables["precursors"]["precursor"].to_list()
    alarmed = leads.filter(pl.col("alarm") < AFTER)
    shares = dict(data.tables["precursors"].select("precursor", "warned").iter_rows())
    best = max((name for name in order if name != LOSS), key=lambda name: shares[name], default=LOSS)
    warned = {name: f"{100 * shares[name]:.0f}%" for name in order}
    title = f"First alarms: {best} before the onset in {warned[best]} of runs, the loss in {warned[LOSS]}"
    caption = (
        "A dot for each held-out run and quantity: steps from the onset of trouble to its first alarm, at one false "
        f"alarm in 100,000 steps; left of 0 it is a warning, at -{BEFORE} one at least so early. A line at the median "
        "of the runs that alarm; at the right the share of runs that were warned."
    )
    spoken = ", ".join(f"{name} {warned[name]}" for name in order)
    y = alt.Y("precursor:N", title=None, sort=order, axis=alt.Axis(labelLimit=180, ticks=False))
    words = "first alarm, steps from the onset"
    scale = alt.Scale(domain=[-BEFORE, AFTER])
    tooltip = ["precursor:N", "run:N", "kind:N", "place:N", "alarm:Q", "loss_alarm:Q"]
    dots = alt.Chart(alarmed).mark_point(filled=True, size=26, opacity=0.5)
    dots = dots.encode(
        x=alt.X("alarm:Q", title=words, scale=scale), y=y, color=alt.Color("kind:N", title=None), tooltip=tooltip
    )
    medians = alt.Chart(alarmed).mark_tick(thickness=2, size=ROW_HEIGHT * 0.7)
    medians = medians.encode(x=alt.X("median(alarm):Q", title=words), y=y)
    labels = pl.DataFrame({"precursor": order, "at": AFTER, "warned": list(warned.values())})
    texts = alt.Chart(labels).mark_text(align="left", dx=6, fontSize=10).encode(x="at:Q", y=y, text="warned:N")
    figure = alt.LayerChart(layer=[zero_line("x"), dots, medians, texts]).properties(height=ROW_HEIGHT * len(order))
    return Chart("early-warnings", title, caption, f"Dot plot of lead times. {title}. Warned: {spoken}.", figure)
