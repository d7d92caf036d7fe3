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
from toposcope.report.figures.representation_phases import representation_phases
from toposcope.report.figures.representations import depth, embeddings, published_representations, representations
from toposcope.report.figures.scaling import scaling
from toposcope.report.figures.similarity import checkpoint_similarity, layer_similarity
from toposcope.report.figures.sizes import cross_size
from toposcope.report.figures.spectra import spectral_against_topology
from toposcope.report.figures.state_diagrams import state_crocker, state_diagrams
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
    published_representations,
    representations,
    depth,
    embeddings,
    state_diagrams,
    state_crocker,
    representation_phases,
    layer_similarity,
    checkpoint_similarity,
    cross_size,
    spectral_against_topology,
)
"""In the order of the page; each returns None where the study has no data for it."""


def draw(material: Material) -> Iterator[Drawn]:
    """Draw every figure the study has data for, one by one, so that each can be rendered while the next is drawn."""
    for make in MAKERS:
        with mpl.rc_context(STYLE):
            drawn = make(material)
        if drawn is not None:
            yield drawn
