"""The Betti curve: how many classes are alive at each filtration value."""

from collections.abc import Mapping

import altair as alt
import numpy as np
from numpy.typing import NDArray

from toposcope.charts.bars import data, empty_chart, filtration_axis, limits
from toposcope.charts.chart import Chart
from toposcope.typing import Vector


def betti_curve(curves: Mapping[str, tuple[Vector, NDArray[np.int64]]], *, descending: bool = False) -> Chart:
    """Draw Betti curves as step functions.

    Parameters
    ----------
    curves : mapping of str to (ndarray, ndarray)
        By name: filtration values, ascending, and the number of classes alive from each to the next.
    descending : bool
        Whether the filtration runs from high to low values.
    """
    title = "; ".join(
        f"{name}: at most {int(counts.max()):,} alive at once" for name, (_, counts) in curves.items() if len(counts)
    )
    caption = "Finite bars alive at each filtration value; classes without a death are not counted."
    if not title:
        return empty_chart("betti-curve", f"{', '.join(curves)}: no finite bars", caption)
    rows = [
        {"diagram": name, "value": value, "alive": count}
        for name, (at, counts) in curves.items()
        for value, count in zip(at.tolist(), counts.tolist(), strict=True)
    ]
    axis = filtration_axis(
        *limits(np.concatenate([at for at, _ in curves.values()])), "filtration value", descending=descending
    )
    legend = alt.Legend() if len(curves) > 1 else None
    figure = alt.Chart(data(rows)).mark_line(interpolate="step-after").encode(
        x=alt.X("value:Q", **axis),
        y=alt.Y("alive:Q", title="classes alive"),
        color=alt.Color("diagram:N", title=None, scale=alt.Scale(domain=list(curves)), legend=legend),
        order=alt.Order("value:Q"),  # a step holds until the next higher value, also where the axis descends
        tooltip=["diagram:N", "value:Q", "alive:Q"],
    )  # fmt: skip
    return Chart("betti-curve", title, caption, f"Step curve of the number of classes alive. {title}.", figure)
