"""The persistence image: the persistence surface over pixels of birth and lifetime."""

import altair as alt
import numpy as np

from toposcope.charts.bars import data, empty_chart
from toposcope.charts.chart import Chart
from toposcope.typing import Matrix, Vector

SIDE = 320
"""Of the square, in pixels."""


def persistence_image(
    name: str, image: Matrix, birth_edges: Vector, lifetime_edges: Vector, *, descending: bool = False
) -> Chart:
    """Draw a persistence image.

    Parameters
    ----------
    name : str
        Of the diagram.
    image : ndarray, shape (h, w)
        Weight of each pixel; rows are lifetimes, columns are births.
    birth_edges, lifetime_edges : ndarray, shape (w + 1,) and (h + 1,)
        Ascending and finite.
    descending : bool
        Whether the filtration runs from high to low values: the lower end of a bar is then its death.
    """
    end = "death" if descending else "birth"
    caption = f"Each bar is a Gaussian at its {end} and lifetime, weighted by its lifetime; a pixel holds its integral."
    if not image.any():
        return empty_chart("persistence-image", f"{name}: no finite bars", caption)
    row, column = np.unravel_index(image.argmax(), image.shape)
    birth, lifetime = (float(edges[i : i + 2].mean()) for edges, i in ((birth_edges, column), (lifetime_edges, row)))
    title = f"{name}: the heaviest pixel lies at {end} {birth:.3g}, lifetime {lifetime:.3g}"
    rows = [
        {
            "birth": birth_edges[j], "birth_end": birth_edges[j + 1],
            "lifetime": lifetime_edges[i], "lifetime_end": lifetime_edges[i + 1], "weight": weight,
        }
        for (i, j), weight in np.ndenumerate(image)
    ]  # fmt: skip
    exact = alt.Scale(nice=False, zero=False)
    figure = alt.Chart(data(rows)).mark_rect().encode(
        x=alt.X("birth:Q", title=end, scale=exact), x2="birth_end:Q",
        y=alt.Y("lifetime:Q", title="lifetime", scale=exact), y2="lifetime_end:Q",
        color=alt.Color("weight:Q", title="weight"),
        tooltip=["birth:Q", "lifetime:Q", "weight:Q"],
    ).properties(width=SIDE, height=SIDE)  # fmt: skip
    return Chart(
        "persistence-image", title, caption, f"Heat map of {image.shape[0]} by {image.shape[1]}. {title}.", figure
    )
