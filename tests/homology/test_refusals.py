"""Mistakes that would pass for numbers: what is no diagram, what is masked, what would not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    Diagram,
    betti_curve,
    bottleneck,
    cross_barcode,
    farthest_points,
    landscape,
    memory,
    neural_persistence,
    rips,
    statistics,
    sublevel_grid,
    unrolled,
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
        (lambda: unrolled([[1.0]]), "weight: expected an array or tensor"),
        (lambda: unrolled(torch.eye(3).to_sparse()), r"weight: .*shape \(3, 3\)"),
    ],
)
def test_mistakes_are_named_in_one_line(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(ToposcopeError, match=rf"\A{message}[^\n]*\Z"):
        mistake()


def test_a_divergence_that_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
    distances = np.abs(np.subtract.outer(np.arange(100.0), np.arange(100.0)))
    with pytest.raises(
        ToposcopeError, match=r"divergence of 100 points in a batch: H1 of 201 points: needs .* GB .*batch_size"
    ):
        cross_barcode(distances, distances)


def test_consecutive_rows_are_a_view_of_transposed_storage() -> None:
    W = np.random.default_rng(0).standard_normal((40, 90)).T
    expected = neural_persistence(W[30:60]).deaths
    np.testing.assert_array_equal(neural_persistence(W, rows=np.arange(30, 60)).deaths, expected)
