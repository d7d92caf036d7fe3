"""A vineyard: births and deaths of the points of a diagram, followed over training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from toposcope.charts.training import step_axis

if TYPE_CHECKING:
    from toposcope.homology.vineyard import Vine

MAX_VINES = 40
"""Drawn, those with the longest bars."""
SIZE = (330, 230)
"""Of each of the two panels, in pixels."""


def vineyard_panels(vines: "Sequence[Vine]", steps: Sequence[int]) -> alt.ConcatChart:
    """Draw a line for each vine, the stronger the longer its longest bar: births in one panel, deaths in the other.

    Parameters
    ----------
    vines : sequence of Vine
        As `toposcope.homology.vineyard` returns them; at most 40 are drawn.
    steps : sequence of int
        Of the diagrams they go through.
    """
    shown = sorted(vines, key=lambda vine: -vine.longest)[:MAX_VINES]
    schema = {"vine": pl.Int64, "step": pl.Int64, **dict.fromkeys(("birth", "death", "longest"), pl.Float64)}
    rows = pl.DataFrame(
        [
            (number, steps[vine.start + k], *pair, vine.longest)
            for number, vine in enumerate(shown)
            for k, pair in enumerate(vine.pairs.tolist())
        ],
        schema=schema,
        orient="row",
    )
    strength = alt.Opacity("longest:Q", scale=alt.Scale(range=[0.2, 1]), legend=None)
    hover = ["vine:N", "step:Q", "birth:Q", "death:Q", "longest:Q"]
    panels = [
        alt.Chart(rows)
        .mark_line(strokeWidth=1.4, point={"size": 12})
        .encode(
            x=step_axis(rows),
            y=alt.Y(f"{end}:Q", title=end, scale=alt.Scale(zero=False)),
            detail="vine:N",
            color=alt.datum("vine", type="nominal", legend=None),
            opacity=strength,
            tooltip=hover,
        )
        .properties(width=SIZE[0], height=SIZE[1])
        for end in ("birth", "death")
    ]
    return alt.concat(*panels, columns=2)
