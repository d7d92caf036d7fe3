"""The mathematics: filtration -> persistence diagram, diagrams -> numbers. Arrays in, arrays out."""

from typing import TYPE_CHECKING

from toposcope.errors import check_arguments_of, unknown_name
from toposcope.homology.attention_maps import attention_map_statistics
from toposcope.homology.basins import (
    CriticalPoints,
    Profile,
    average_persistence,
    critical_points,
    critical_points_of_triangles,
    profile_graph,
    profile_grid,
    saddle_minimum_distance,
)
from toposcope.homology.deep_graph import deep_graph_persistence
from toposcope.homology.diagram import Diagram, betti_curve, landscape, persistence_image
from toposcope.homology.dimension import DimensionEstimate, PHDimension, TwoNN, ph_dimension, two_nn
from toposcope.homology.distances import (
    DiagramDistances,
    bottleneck,
    diagram_distances,
    matching,
    wasserstein,
)
from toposcope.homology.dowker import DowkerNull, dowker, dowker_null
from toposcope.homology.eigenpairs import Eigenpairs, extreme_eigenpairs
from toposcope.homology.loop_births import h1_births
from toposcope.homology.loops import Loop, longest_loops
from toposcope.homology.matrix_controls import weight_variance
from toposcope.homology.multidimensional_scaling import (
    Scaling,
    classical_scaling,
    principal_shares,
    random_walk_shares,
    random_walk_shares_of,
    step_cosines,
)
from toposcope.homology.neural_persistence import NeuralPersistence, neural_persistence
from toposcope.homology.pairings import (
    neural_persistence_pairing,
    neural_persistence_pairing_batch,
    rips_pairings,
    rips_pairings_batch,
)
from toposcope.homology.rips import farthest_points, points_for_loops, rips
from toposcope.homology.scattered import delaunay_edges, nearest_neighbour_edges
from toposcope.homology.spectral_density import SpectralDensity, spectral_density
from toposcope.homology.spectral_measures import (
    Moments,
    SpectralMeasures,
    measures_of_singular_values,
    spectral_measures,
)
from toposcope.homology.statistics import statistics
from toposcope.homology.sublevel import Sublevel, sublevel_graph, sublevel_grid

__all__ = [
    "CriticalPoints",
    "Diagram",
    "DiagramDistances",
    "DimensionEstimate",
    "DowkerNull",
    "Eigenpairs",
    "Loop",
    "Moments",
    "NeuralPersistence",
    "PHDimension",
    "Profile",
    "Scaling",
    "SpectralDensity",
    "SpectralMeasures",
    "Sublevel",
    "TwoNN",
    "attention_map_statistics",
    "average_persistence",
    "betti_curve",
    "bottleneck",
    "classical_scaling",
    "critical_points",
    "critical_points_of_triangles",
    "deep_graph_persistence",
    "delaunay_edges",
    "diagram_distances",
    "dowker",
    "dowker_null",
    "extreme_eigenpairs",
    "farthest_points",
    "h1_births",
    "landscape",
    "longest_loops",
    "matching",
    "measures_of_singular_values",
    "nearest_neighbour_edges",
    "neural_persistence",
    "neural_persistence_pairing",
    "neural_persistence_pairing_batch",
    "persistence_image",
    "ph_dimension",
    "points_for_loops",
    "principal_shares",
    "profile_graph",
    "profile_grid",
    "random_walk_shares",
    "random_walk_shares_of",
    "rips",
    "rips_pairings",
    "rips_pairings_batch",
    "saddle_minimum_distance",
    "spectral_density",
    "spectral_measures",
    "statistics",
    "step_cosines",
    "sublevel_graph",
    "sublevel_grid",
    "two_nn",
    "wasserstein",
    "weight_variance",
]


check_arguments_of(__name__, __all__)


if not TYPE_CHECKING:  # to a type checker any name would then exist

    def __getattr__(name: str) -> object:
        raise unknown_name(f"module {__name__!r}", name, __all__)


def __dir__() -> list[str]:
    return __all__
