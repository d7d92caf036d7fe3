"""The persistence landscape: its first functions, one line each."""

import altair as alt
import numpy as np

from toposcope.charts.bars import data, empty_chart, filtration_axis, limits
from toposcope.charts.chart import Chart
from toposcope.typing import Matrix, Vector


def landscape(name: str, at: Vector, layers: Matrix, *, descending: bool = False) -> Chart:
    """Draw persistence landscape functions.

    Parameters
    ----------
    name : str
        Of the diagram.
    at : ndarray, shape (k,)
        Filtration values, ascending.
    layers : ndarray, shape (n, k)
        Values of the functions, the largest first.
    descending : bool
        Whether the filtration runs from high to low values.
    """
    caption = "Function k at t is the k-th largest of the tents that bars span, half a lifetime high at their middle."
    if not layers.any():
        return empty_chart("landscape", f"{name}: no finite bars", caption)
    title = f"{name}: the first landscape function peaks at {at[layers[0].argmax()]:.3g}, {layers[0].max():.3g} high"
    order = [f"{k}" for k in range(1, len(layers) + 1)]
    rows = [
        {"value": value, "height": height, "function": k}
        for k, layer in zip(order, layers, strict=True)
        for value, height in zip(at.tolist(), layer.tolist(), strict=True)
    ]
    axis = filtration_axis(*limits(np.asarray(at)), "filtration value t", descending=descending)
    figure = alt.Chart(data(rows)).mark_line().encode(
        x=alt.X("value:Q", **axis),
        y=alt.Y("height:Q", title="landscape"),
        color=alt.Color("function:N", title="function", scale=alt.Scale(domain=order)),
        tooltip=["function:N", "value:Q", "height:Q"],
    )  # fmt: skip
    return Chart("landscape", title, caption, f"Lines of {len(layers)} landscape functions. {title}.", figure)
