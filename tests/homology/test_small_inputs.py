"""Of small inputs nothing is compiled at first; the bits are those of the kernels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from toposcope.homology import Diagram, bottleneck, matching, neural_persistence, rips, wasserstein
from toposcope.homology.loops import cap_of
from toposcope.homology.plain_loops import plain_pairs
from toposcope.homology.point_cloud import with_distances
from toposcope.kernels import compiled
from toposcope.kernels.compiled import Patience, kernel_or_python
from toposcope.kernels.prim import matrix_tree
from toposcope.kernels.sets import find
from toposcope.typing import Matrix

ENTRIES = st.one_of(st.integers(-2, 2), st.floats(-1e3, 1e3, width=16), st.just(-0.0))


def matrices(**least: int) -> st.SearchStrategy[Matrix]:
    """Matrices with ties, zeros of both signs, and equal rows."""
    shapes = npst.array_shapes(min_dims=2, max_dims=2, max_side=24, **least)
    dtypes = st.sampled_from([np.float32, np.float64])
    return st.tuples(dtypes, shapes).flatmap(lambda kind: npst.arrays(*kind, elements=ENTRIES))


@contextmanager
def patience_of(steps: int) -> Iterator[None]:
    """Let Python run so many steps of kernels, as if none were compiled."""
    with (
        patch.object(compiled, "patience", patience := Patience()),
        patch.object(compiled, "_is_ready", lambda _: False),
    ):
        patience.steps, patience.remembers = steps, False
        yield


def assert_same_bits(call: Callable[[], list[Any]]) -> None:
    """Call with what Python runs, and with kernels."""
    with patience_of(10**9):
        early = call()
    with patience_of(0):
        late = call()
    assert list(map(type, early)) == list(map(type, late))
    for before, after in zip(early, late, strict=True):
        assert np.asarray(before).tobytes() == np.asarray(after).tobytes()


def contents(*diagrams: Diagram) -> list[Any]:
    """Return all that is in some diagrams."""
    counts = [(d.dimension, d.n_essential, d.n_truncated) for d in diagrams]
    return [counts, [d.engine for d in diagrams], *(d.pairs for d in diagrams)]


@given(matrices(), st.sampled_from(["euclidean", "cosine"]), st.sampled_from([np.inf, 2.0]))
def test_clouds(points: Matrix, metric: Any, threshold: float) -> None:
    points = points + 3 if metric == "cosine" else points  # no row of zeros
    points[~points.any(axis=1)] = 1
    assert_same_bits(lambda: contents(*rips(points, metric=metric, threshold=threshold)))
    assert_same_bits(lambda: contents(*rips(with_distances(points, metric), metric=metric)))


@given(matrices(min_side=2), st.sampled_from([np.inf, 2.0]), st.booleans())
def test_matrices_of_distances(entries: Matrix, threshold: float, is_metric: bool) -> None:
    n = min(entries.shape)
    lengths = np.abs(entries[:n, :n]) + (100 if is_metric else 0)
    distances = np.triu(lengths, 1) + np.triu(lengths, 1).T
    for cut in (np.inf, np.median(distances)):
        distances[distances > cut] = np.inf
        assert_same_bits(lambda: contents(*rips(distances, metric="precomputed", threshold=threshold)))


@given(matrices(), st.sampled_from([1.0, 2.0, 2.5]), st.sampled_from(["drop", "count"]))
def test_neural_persistence(W: Matrix, p: float, essential: Any) -> None:
    def measured() -> list[Any]:
        result = neural_persistence(W, p=p, essential=essential)
        return [result.mean, result.norm, result.normalized, result.deaths, result.diagram.pairs]

    assert_same_bits(measured)


@given(matrices(min_side=2), matrices(min_side=2), st.booleans())
def test_distances_of_diagrams(first: Matrix, second: Matrix, on_line: bool) -> None:
    pairs = [np.sort(entries[:, :2].astype(np.float64), axis=1) for entries in (first, second)]
    for births, _ in (of.T for of in pairs if on_line):
        births[:] = -2000
    a, b = (Diagram(of, 1) for of in pairs)
    assert_same_bits(
        lambda: [bottleneck(a, b), *(of(a, b, order) for of in (wasserstein, matching) for order in (1, 2))]
    )


def test_many_dense_cocycles_are_left_to_the_kernels() -> None:
    """Edges between the halves open loops, all of which the rest closes one by one."""
    rng, side = np.random.default_rng(0), np.arange(40) % 2
    upper = np.triu(np.where(side[:, None] == side, 2, rng.uniform(0.5, 1, (40, 40))), 1)
    distances = upper + upper.T
    cap = cap_of(distances, distances.max(axis=1), np.inf)
    whole = plain_pairs(distances, cap, 10**9)
    assert whole is not None
    assert len(whole) == 19**2
    assert plain_pairs(distances, cap, 1000) is None
    assert_same_bits(lambda: contents(*rips(distances, metric="precomputed")))


def test_a_kernel_is_compiled_when_python_has_run_it_for_long() -> None:
    with patience_of(100):
        chosen = [kernel_or_python(matrix_tree, n_steps) for n_steps in (60, 60, 10)]
        assert [kernel is matrix_tree for kernel in chosen] == [False, True, True]
        assert kernel_or_python(find, 101) is find


def test_each_process_has_half_the_patience_of_the_one_before(tmp_path: Path) -> None:
    with (
        patch.object(compiled, "_uses_of", lambda _: tmp_path / "uses"),
        patch.object(compiled, "_is_ready", lambda _: False),
    ):
        processes = [Patience() for _ in range(4)]
        chosen = [process.lasts(matrix_tree, Patience.steps // 3) for process in processes]
    assert chosen == [True, True, False, False]
    assert (tmp_path / "uses").read_bytes() == b"...."


def test_what_is_compiled_is_used_at_once() -> None:
    find(np.zeros(2, np.int32), 1)
    with patch.object(compiled, "patience", Patience()):
        assert kernel_or_python(find, 1) is find


@pytest.mark.parametrize("n_steps", [1, 10**6])
def test_patience_ends(n_steps: int) -> None:
    with patience_of(10**9):
        compiled.patience.end()
        assert kernel_or_python(matrix_tree, n_steps) is matrix_tree
