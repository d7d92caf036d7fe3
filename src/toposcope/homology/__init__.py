"""The mathematics: filtration -> persistence diagram, diagrams -> numbers. Arrays in, arrays out."""

from toposcope.homology.diagram import Diagram
from toposcope.homology.distances import bottleneck, wasserstein
from toposcope.homology.neural_persistence import NeuralPersistence, neural_persistence
from toposcope.homology.ph_dimension import DimensionEstimate, PHDimension, ph_dimension
from toposcope.homology.rips import farthest_points, rips
from toposcope.homology.statistics import statistics
from toposcope.homology.sublevel import (
    Sublevel,
    delaunay_edges,
    nearest_neighbour_edges,
    sublevel_graph,
    sublevel_grid,
)
from toposcope.homology.topology_divergence import TopologyDivergence, cross_barcode, rtd
from toposcope.homology.vectors import betti_curve, landscape, persistence_image
from toposcope.homology.weight_views import qkv_rows, unrolled

__all__ = [
    "Diagram",
    "DimensionEstimate",
    "NeuralPersistence",
    "PHDimension",
    "Sublevel",
    "TopologyDivergence",
    "betti_curve",
    "bottleneck",
    "cross_barcode",
    "delaunay_edges",
    "farthest_points",
    "landscape",
    "nearest_neighbour_edges",
    "neural_persistence",
    "persistence_image",
    "ph_dimension",
    "qkv_rows",
    "rips",
    "rtd",
    "statistics",
    "sublevel_graph",
    "sublevel_grid",
    "unrolled",
    "wasserstein",
]
