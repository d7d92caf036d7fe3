"""Every public function of `toposcope.homology` on a small input, with NumPy, SciPy and Numba alone (a program too)."""

import inspect
import sys

import numpy as np

from toposcope import homology
from toposcope.errors import ToposcopeError
from toposcope.typing import Vector


def results() -> dict[str, object]:
    """Return what each public function returns."""
    rng = np.random.default_rng(0)
    W, points = rng.standard_normal((8, 6)), rng.standard_normal((30, 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    h0, h1 = homology.rips(points)
    later = homology.rips(points + 0.1 * rng.standard_normal(points.shape))[1]
    grid, edges = rng.standard_normal((9, 9)), homology.nearest_neighbour_edges(points, 4)
    heights, triangles = rng.standard_normal(4), [[0, 1, 2], [1, 3, 2]]
    tree = homology.sublevel_grid(grid)
    A = W @ W.T

    def product(v: Vector) -> Vector:
        return A @ v

    return {
        "attention_map_statistics": homology.attention_map_statistics(np.full((4, 4), 0.25)),
        "average_persistence": homology.average_persistence(tree),
        "betti_curve": homology.betti_curve(h1, [0.5, 1.0]),
        "bottleneck": homology.bottleneck(h1, later),
        "classical_scaling": homology.classical_scaling(distances),
        "critical_points": homology.critical_points(grid),
        "critical_points_of_triangles": homology.critical_points_of_triangles(heights, triangles),
        "deep_graph_persistence": homology.deep_graph_persistence([W.T, W]),
        "delaunay_edges": homology.delaunay_edges(points),
        "diagram_distances": homology.diagram_distances(h1, later),
        "dowker": homology.dowker(W),
        "dowker_null": homology.dowker_null(W, draws=5),
        "extreme_eigenpairs": homology.extreme_eigenpairs(product, 8, 2, rng=rng),
        "farthest_points": homology.farthest_points(points, 5),
        "h1_births": homology.h1_births(points),
        "landscape": homology.landscape(h1, [0.5, 1.0]),
        "longest_loops": homology.longest_loops(points),
        "matching": homology.matching(h1, later),
        "measures_of_singular_values": homology.measures_of_singular_values([3.0, 2.0, 1.0]),
        "nearest_neighbour_edges": edges,
        "neural_persistence": homology.neural_persistence(W),
        "neural_persistence_pairing": homology.neural_persistence_pairing(W),
        "neural_persistence_pairing_batch": homology.neural_persistence_pairing_batch([W, -W]),
        "persistence_image": homology.persistence_image(h1, [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], 0.1),
        "ph_dimension": homology.ph_dimension(rng.standard_normal((200, 2)), n_draws=2),
        "points_for_loops": homology.points_for_loops(30),
        "principal_shares": homology.principal_shares(distances),
        "profile_graph": homology.profile_graph(points[:, 0], edges),
        "profile_grid": homology.profile_grid(grid),
        "random_walk_shares": homology.random_walk_shares(10),
        "random_walk_shares_of": homology.random_walk_shares_of([1.0, 2.0, 1.0]),
        "rips": [h0, h1],
        "rips_pairings": homology.rips_pairings(points),
        "rips_pairings_batch": homology.rips_pairings_batch([points, -points], max_dimension=0),
        "saddle_minimum_distance": homology.saddle_minimum_distance(tree),
        "spectral_density": homology.spectral_density(product, 8, 2, 5, rng),
        "spectral_measures": homology.spectral_measures(points),
        "statistics": homology.statistics(h1),
        "step_cosines": homology.step_cosines(distances),
        "sublevel_graph": homology.sublevel_graph(points[:, 0], edges),
        "sublevel_grid": tree,
        "two_nn": homology.two_nn(points),
        "wasserstein": homology.wasserstein(h1, later),
        "weight_variance": homology.weight_variance([W]),
    }


def main() -> None:
    """Call them, and check that none was forgotten."""
    functions = {name for name in homology.__all__ if inspect.isfunction(getattr(homology, name))}
    called = results()
    assert called.keys() == functions, called.keys() ^ functions
    refusal = ""
    try:
        homology.rips(np.eye(5), max_dimension=3)
    except ToposcopeError as error:
        refusal = str(error)
    assert refusal.endswith("got 3; gudhi.RipsComplex has H3 and up"), refusal
    sys.stdout.write(f"{len(called)} functions of toposcope.homology work with NumPy, SciPy and Numba alone\n")


if __name__ == "__main__":
    main()
