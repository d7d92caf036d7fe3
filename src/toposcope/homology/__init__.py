"""The mathematics: filtration -> persistence diagram, diagrams -> numbers. Arrays in, arrays out."""

from toposcope.homology.diagram import Diagram
from toposcope.homology.distances import bottleneck, wasserstein
from toposcope.homology.neural_persistence import NeuralPersistence, neural_persistence
from toposcope.homology.rips import farthest_points, rips
from toposcope.homology.statistics import statistics
from toposcope.homology.vectors import betti_curve, landscape, persistence_image

__all__ = [
    "Diagram",
    "NeuralPersistence",
    "betti_curve",
    "bottleneck",
    "farthest_points",
    "landscape",
    "neural_persistence",
    "persistence_image",
    "rips",
    "statistics",
    "wasserstein",
]
