"""The figures: Matplotlib, sized for a page and a phone, legible in grey and to the colour-blind.

`draw` makes all of them that a study has data for.
"""

from collections.abc import Iterator

import matplotlib as mpl

from toposcope.report.figures.change import change_points, rate
from toposcope.report.figures.correlation import association, partial
from toposcope.report.figures.diagrams import crocker, diagrams
from toposcope.report.figures.drawn import NAMELESS, STYLE, Drawn
from toposcope.report.figures.layers import layers
from toposcope.report.figures.overview import overview
from toposcope.report.figures.published import predictions, published, traces
from toposcope.report.figures.references import references
from toposcope.report.figures.scaling import scaling
from toposcope.report.figures.training import gradients, groups, losses, topology
from toposcope.report.material import Material

__all__ = ["NAMELESS", "STYLE", "Drawn", "draw"]

MAKERS = (
    overview,
    losses,
    topology,
    association,
    partial,
    published,
    predictions,
    scaling,
    rate,
    change_points,
    layers,
    groups,
    diagrams,
    crocker,
    references,
    gradients,
    traces,
)
"""In the order of the page; each returns None where the study has no data for it."""


def draw(material: Material) -> Iterator[Drawn]:
    """Draw every figure the study has data for, one by one, so that each can be rendered while the next is drawn."""
    for make in MAKERS:
        with mpl.rc_context(STYLE):
            drawn = make(material)
        if drawn is not None:
            yield drawn
