"""Mistakes that would pass for numbers: what is no diagram, what is masked, what would not fit."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from argument_mistakes import mistakes

from toposcope import homology
from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Diagram,
    Moments,
    SpectralDensity,
    betti_curve,
    bottleneck,
    farthest_points,
    landscape,
    neural_persistence,
    rips,
    statistics,
    sublevel_grid,
    wasserstein,
)

BAR = Diagram(np.array([[0.0, 1.0]]), 0)
MASKED = np.ma.masked_array([[1.0, 2.0], [0.0, 4.0]], [[False, False], [True, False]])
WIDE = Diagram(np.array([[-1e308, 1.7e308]]), 0)
anything: Any = None


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: Diagram(np.array([[0.0, np.inf]]), 0), "pairs: 1 of 1 points are not finite"),
        (lambda: Diagram(np.array([[0.0, np.nan], [0, 1]]), 0), "pairs: 1 of 2 points are not finite"),
        (lambda: Diagram(np.array([1.0, 2.0]), 0), r"pairs: expected .*shape \(2,\)"),
        (lambda: Diagram(np.array([["a", "b"]]), 0), "pairs: expected"),
        (lambda: wasserstein(np.zeros((1, 2)), BAR), "first: expected a Diagram, got ndarray"),  # type: ignore[arg-type]
        (lambda: bottleneck(BAR, None), "second: expected a Diagram, got NoneType"),  # type: ignore[arg-type]
        (lambda: statistics(anything), "diagram: expected a Diagram"),
        (lambda: betti_curve(anything, [0.0]), "diagram: expected a Diagram"),
        (lambda: landscape(BAR, MASKED[1]), "at: .*masked"),
        (lambda: wasserstein(WIDE, BAR), "diagrams: .*range of float64"),
        (lambda: bottleneck(WIDE, BAR), "diagrams: .*range of float64"),
        (lambda: wasserstein(BAR, BAR, order=True), "order: expected 1 or 2"),  # type: ignore[arg-type]
        (lambda: sublevel_grid(MASKED), "values: .*masked"),
        (lambda: neural_persistence(MASKED), "W: .*masked"),
        (lambda: neural_persistence(torch.eye(3).to_sparse()), r"W: .*shape \(3, 3\)"),
        (lambda: neural_persistence(np.eye(3), scale=10**400), "scale: expected"),
        (lambda: rips(np.eye(3), metric=np.array(["a", "b"])), "metric: expected"),  # type: ignore[arg-type]
        (lambda: farthest_points(np.eye(3), True), "count: expected a whole number"),
    ],
)
def test_mistakes_are_named_in_one_line(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\A{message}[^\n]*\Z"):
        mistake()


def test_consecutive_rows_are_a_view_of_transposed_storage() -> None:
    W = np.random.default_rng(0).standard_normal((40, 90)).T
    expected = neural_persistence(W[30:60]).deaths
    np.testing.assert_array_equal(neural_persistence(W, rows=np.arange(30, 60)).deaths, expected)


POINTS = np.random.default_rng(0).normal(size=(12, 3))
MATRIX = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
EDGES = np.array([[0, 1], [1, 2]])
PRODUCT: dict[str, Any] = {"product": lambda v: v, "dimension": 5, "rng": np.random.default_rng(0)}
GRID = [0.0, 1.0, 2.0]
DENSITY = SpectralDensity(2, np.empty(0), *np.ones((4, 3, 2)))
VALID: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Diagram": (Diagram, {"pairs": BAR.pairs, "dimension": 0}),
    "Moments": (Moments, {"dimension": 3}),
    "SpectralDensity.share": (DENSITY.share, {"low": 0.0, "high": 1.0}),
    "betti_curve": (betti_curve, {"diagram": BAR, "at": GRID}),
    "classical_scaling": (homology.classical_scaling, {"distances": MATRIX}),
    "critical_points": (homology.critical_points, {"values": POINTS}),
    "deep_graph_persistence": (homology.deep_graph_persistence, {"matrices": [POINTS]}),
    "delaunay_edges": (homology.delaunay_edges, {"points": POINTS[:, :2]}),
    "dowker": (homology.dowker, {"W": POINTS}),
    "dowker_null": (homology.dowker_null, {"W": POINTS, "draws": 5}),
    "extreme_eigenpairs": (homology.extreme_eigenpairs, {**PRODUCT, "n_largest": 1}),
    "farthest_points": (farthest_points, {"points": POINTS, "count": 2}),
    "h1_births": (homology.h1_births, {"points": POINTS}),
    "landscape": (landscape, {"diagram": BAR, "at": GRID}),
    "longest_loops": (homology.longest_loops, {"points": POINTS}),
    "measures_of_singular_values": (homology.measures_of_singular_values, {"sigma": GRID}),
    "nearest_neighbour_edges": (homology.nearest_neighbour_edges, {"points": POINTS, "k": 2}),
    "neural_persistence": (neural_persistence, {"W": POINTS}),
    "neural_persistence_pairing": (homology.neural_persistence_pairing, {"W": POINTS}),
    "neural_persistence_pairing_batch": (homology.neural_persistence_pairing_batch, {"stack": POINTS[None]}),
    "persistence_image": (
        homology.persistence_image,
        {"diagram": BAR, "birth_edges": GRID, "lifetime_edges": GRID, "bandwidth": 0.1},
    ),
    "ph_dimension": (homology.ph_dimension, {"points": POINTS, "sizes": [4, 6, 8], "n_draws": 2}),
    "points_for_loops": (homology.points_for_loops, {"n": 5}),
    "principal_shares": (homology.principal_shares, {"distances": MATRIX}),
    "profile_graph": (homology.profile_graph, {"values": GRID, "edges": EDGES}),
    "profile_grid": (homology.profile_grid, {"values": POINTS}),
    "random_walk_shares": (homology.random_walk_shares, {"n": 4}),
    "random_walk_shares_of": (homology.random_walk_shares_of, {"lengths": GRID}),
    "rips": (rips, {"points": POINTS}),
    "rips_pairings": (homology.rips_pairings, {"points": POINTS}),
    "rips_pairings_batch": (homology.rips_pairings_batch, {"stack": POINTS[None]}),
    "spectral_density": (homology.spectral_density, {**PRODUCT, "draws": 2, "steps": 2}),
    "spectral_measures": (homology.spectral_measures, {"points": POINTS}),
    "step_cosines": (homology.step_cosines, {"distances": MATRIX}),
    "sublevel_graph": (homology.sublevel_graph, {"values": GRID, "edges": EDGES}),
    "sublevel_grid": (sublevel_grid, {"values": POINTS}),
    "two_nn": (homology.two_nn, {"points": POINTS}),
}


@pytest.mark.parametrize(("name", "parameter", "value"), mistakes(VALID))
def test_what_is_no_number_is_refused_with_its_name(name: str, parameter: str, value: Any) -> None:
    call, valid = VALID[name]
    with pytest.raises(ToposcopeError, match=rf"\A{parameter}: [^\n]*\Z"):
        call(**{**valid, parameter: value})


@pytest.mark.parametrize("name", VALID)
def test_the_same_calls_are_valid_without_a_mistake(name: str) -> None:
    call, valid = VALID[name]
    call(**valid)


def test_every_public_function_is_among_them() -> None:
    takes_no_number = {
        "attention_map_statistics",
        "average_persistence",
        "bottleneck",
        "critical_points_of_triangles",
    }
    takes_no_number |= {"diagram_distances", "matching", "saddle_minimum_distance", "statistics"}
    takes_no_number |= {"wasserstein", "weight_variance"}
    functions = {name for name in homology.__all__ if inspect.isfunction(getattr(homology, name))}
    assert functions <= set(VALID) | takes_no_number
