"""The distance matrix: a heat map of the distances between objects, in their order."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from toposcope.charts.chart import Chart
from toposcope.charts.diagrams import data, empty_chart
from toposcope.errors import ToposcopeError


def step_heat_map(rows: pl.DataFrame, row: str, order: Sequence[str], title: str, *, signed: bool) -> alt.LayerChart:
    """Draw a value by row and checkpoint."""
    rows = rows.with_columns(value=pl.when(pl.col("value").is_finite()).then("value"))
    largest = max((abs(value) for value in rows.get_column("value").drop_nulls()), default=1.0) or 1.0
    scale = alt.Scale(range="diverging", domain=[-largest, largest], domainMid=0) if signed else alt.Scale(zero=False)
    base = alt.Chart(rows).encode(
        x=alt.X("step:O", title="training step", axis=alt.Axis(format=",d", labelAngle=0, labelSeparation=8)),
        y=alt.Y(f"{row}:N", title=None, sort=list(order), axis=alt.Axis(labelLimit=160, grid=False)),
        tooltip=[f"{row}:N", alt.Tooltip("step:O", format=",d"), alt.Tooltip("value:Q", format=".4~g", title=title)],
    )
    cells = base.mark_rect().encode(color=alt.Color("value:Q", title=title, scale=scale))
    undefined = base.transform_filter("!isValid(datum.value)")
    height = min(560, 16 * len(order))
    layers = [cells.transform_filter("isValid(datum.value)")]
    if rows.get_column("value").has_nulls():
        layers += [undefined.mark_rect(color="#888", opacity=0.15), undefined.mark_text(text="×", opacity=0.7)]
    return alt.LayerChart(layer=layers).properties(height=height)


SIDE = 320  # of the square, in pixels
MAX_NUMBERS = 8  # matrices of at most this many rows have room for numbers


def distance_matrix(distances: ArrayLike, names: Sequence[str], what: str = "distance") -> Chart:
    """Draw pairwise distances.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        Symmetric; NaN where a distance is not known.
    names : sequence of str
        Of the rows, in their order, which is kept.
    what : str
        The distance: "bottleneck distance".

    Returns
    -------
    Chart

    Raises
    ------
    ToposcopeError
        If the matrix is not square, or there is not one name for each row.

    Examples
    --------
    >>> import numpy as np
    >>> from toposcope import rips
    >>> from toposcope.homology import bottleneck
    >>> clouds = [np.random.default_rng(seed).normal(size=(20, 2)) for seed in range(3)]
    >>> diagrams = [rips(cloud)[1] for cloud in clouds]
    >>> distances = [[bottleneck(a, b) for b in diagrams] for a in diagrams]
    >>> distance_matrix(distances, ["a", "b", "c"], "bottleneck distance").title
    'Nearest: a and b; farthest: a and c'
    """
    matrix = np.asarray(distances, dtype=np.float64)
    n = len(names)
    if matrix.shape != (n, n):
        raise ToposcopeError(f"distances: expected shape ({n}, {n}) for {n} names, got {matrix.shape}")
    labels = _distinct(names)
    between = np.where(np.triu(np.ones((n, n), dtype=bool), 1) & np.isfinite(matrix), matrix, np.nan)
    caption = f"Pairwise {what}, rows in the order given."
    if not np.isfinite(between).any():
        return empty_chart("distance-matrix", f"No {what} between two of {n}", caption)
    nearest, farthest = (
        " and ".join(labels[i] for i in np.unravel_index(pick(between), matrix.shape))
        for pick in (np.nanargmin, np.nanargmax)
    )
    title = f"Nearest: {nearest}; farthest: {farthest}" if n > 2 else f"{nearest}: {what} {np.nanmax(between):.3g}"
    rows = [
        {"row": labels[i], "column": labels[j], "distance": value, "text": f"{value:.2g}"}
        if np.isfinite(value)
        else {"row": labels[i], "column": labels[j], "distance": None, "text": "–"}
        for (i, j), value in np.ndenumerate(matrix)
    ]
    if not np.isfinite(matrix).all():
        caption += " Cells marked – are not known."
    base = alt.Chart(data(rows)).encode(
        x=alt.X("column:N", sort=labels, title=None), y=alt.Y("row:N", sort=labels, title=None)
    )
    high = float(np.nanmax(np.where(np.isfinite(matrix), matrix, np.nan)))
    cells = base.transform_filter("datum.distance !== null").mark_rect().encode(
        color=alt.Color("distance:Q", title=what, scale=alt.Scale(domain=[0, high or 1])),
        tooltip=["row:N", "column:N", "distance:Q"],
    )  # fmt: skip
    unknown = base.transform_filter("datum.distance === null").mark_text().encode(text="text:N")
    layers = [cells, unknown]
    if n <= MAX_NUMBERS:
        # the scale runs from dark to light, on light pages and on dark ones
        ink = alt.when(alt.datum.distance > high / 2).then(alt.value("#111111")).otherwise(alt.value("#ffffff"))
        layers.append(base.transform_filter("datum.distance !== null").mark_text().encode(text="text:N", color=ink))
    figure = alt.layer(*layers).properties(width=SIDE, height=SIDE)
    return Chart("distance-matrix", title, caption, f"Heat map of {n} by {n}: {what}. {title}.", figure)


def _distinct(names: Sequence[str]) -> list[str]:
    """Append a number to names that occur again, so that each row has its own."""
    labels: list[str] = []
    for name in map(str, names):
        label, k = name, 2
        while label in labels:
            label, k = f"{name} ({k})", k + 1
        labels.append(label)
    return labels
