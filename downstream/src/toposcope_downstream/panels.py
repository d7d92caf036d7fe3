"""Panels side by side, each under its name."""

from collections.abc import Mapping

import altair as alt
import polars as pl

WIDTH, HEIGHT = 220, 170  # pixels of one of several panels in a file; on a page their width is that of their place
MAX_COLUMNS = 4


def panels(figures: Mapping[str, alt.LayerChart]) -> alt.LayerChart | alt.ConcatChart:
    """Set panels side by side under their names; a single one fills the place, without its name."""
    if len(figures) == 1:
        return next(iter(figures.values())).properties(height=320)
    named = [alt.layer(figure, _name(name)).properties(width=WIDTH, height=HEIGHT) for name, figure in figures.items()]
    return alt.concat(*named, columns=min(MAX_COLUMNS, len(named)))


def _name(name: str) -> alt.Chart:
    """Return the name as a mark: a title's place would depend on the labels of the axis."""
    text = alt.Chart(pl.DataFrame({"name": [name]})).mark_text(
        align="left", baseline="bottom", fontWeight="bold", fontSize=13
    )
    named: alt.Chart = text.encode(x=alt.value(0), y=alt.value(-9), text="name:N")
    return named
