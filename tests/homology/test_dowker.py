"""Loops of weight matrices against GUDHI's explicit complex, and what they keep; their null on Gaussian matrices."""

from itertools import combinations
from typing import Any

import gudhi
import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from property_examples import examples

import toposcope as ts
from toposcope.errors import ToposcopeError
from toposcope.homology import bottleneck, dowker, dowker_null
from toposcope.homology.dowker import significant_bits

Array = NDArray[np.float64]
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))
ENTRIES = {
    "ties and signs": st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]),
    "mostly zeros": st.sampled_from([0.0, 0.0, -0.0, 0.0, 1.0, -3.0]),
    "any": st.floats(-1e300, 1e300),
    "one digit apart": st.sampled_from([1.0, -np.nextafter(1.0, 2), np.nextafter(1.0, 0), 0.5]),
    "denormal": st.integers(-6, 6).map(lambda k: k * 5e-324),
    "scales apart": st.integers(-320, 300).map(lambda k: 10.0**k),
}
matrices = st.one_of([arrays(np.float64, SHAPES, elements=entries) for entries in ENTRIES.values()])


def explicit(W: Array) -> list[Array]:
    """H0 and H1 of the complex on the rows, or on the columns if they are fewer, by GUDHI; zeros enter at 1."""
    A = np.abs(W if len(W) <= W.shape[1] else W.T)
    values = 1 - A / A.max() if A.any() else np.zeros_like(A)
    tree = gudhi.SimplexTree()
    for size in (1, 2, 3):
        for rows in combinations(range(len(A)), size):
            tree.insert(list(rows), values[list(rows)].max(axis=0).min())
    tree.compute_persistence(homology_coeff_field=2, min_persistence=0, persistence_dim_max=True)
    return [ordered(tree.persistence_intervals_in_dimension(k)) for k in (0, 1)]


def ordered(bars: Array) -> Array:
    finite = bars[np.isfinite(bars).all(axis=1)] if len(bars) else np.empty((0, 2))
    finite = finite[finite[:, 1] > finite[:, 0]]
    return finite[np.lexsort((finite[:, 1], finite[:, 0]))]


def assert_same_bars(W: Any, expected: list[Array]) -> None:
    found = dowker(W)
    assert [diagram.n_essential for diagram in found] == [1, 0]
    for diagram, bars in zip(found, expected, strict=True):
        assert_array_equal(diagram.pairs, bars)


@examples(400)
@given(matrices)
def test_bars_are_those_of_the_explicit_complex(W: Array) -> None:
    assert_same_bars(W, explicit(W))


@pytest.mark.parametrize("kind", ["normal", "rounded", "sparse", "blocks", "low rank", "heavy"])
@pytest.mark.parametrize("shape", [(14, 90), (30, 22)], ids=str)
def test_larger_ones_too(kind: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    W = rng.normal(size=shape)
    if kind == "rounded":
        W = np.round(4 * W)
    elif kind == "sparse":
        W *= rng.random(shape) < 0.15
    elif kind == "blocks":
        W *= np.add.outer(np.arange(shape[0]) * 3 // shape[0], np.arange(shape[1]) * 3 // shape[1]) % 3 < 2
    elif kind == "low rank":
        W = rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
    elif kind == "heavy":
        W **= 5
    assert_same_bars(W, explicit(W))


@examples(100)
@given(matrices, st.randoms(use_true_random=False))
def test_transposed_permuted_and_with_other_signs(W: Array, random: Any) -> None:
    rng = np.random.default_rng(random.randrange(1 << 30))
    expected = [diagram.pairs for diagram in dowker(W)]
    assert_same_bars(W.T, expected)
    assert_same_bars(
        W[rng.permutation(len(W))][:, rng.permutation(W.shape[1])] * rng.choice([-1, 1], W.shape), expected
    )


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_cycles(k: int) -> None:
    W = np.eye(k) + np.roll(np.eye(k), 1, axis=1)
    h0, h1 = dowker(3 * W)
    assert len(h0.pairs) == 0
    assert h1.pairs.tolist() == ([] if k == 2 else [[0.0, 1.0]])


@examples(60)
@given(arrays(np.float64, (6, 9), elements=st.floats(-1, 1)), st.floats(1e-6, 0.3), st.integers(0, 1 << 30))
def test_no_bar_moves_by_more_than_the_largest_change(W: Array, size: float, seed: int) -> None:
    W[0, 0] = 2.0  # the largest of both, by which they are divided
    change = np.random.default_rng(seed).uniform(-size, size, W.shape)
    change[0, 0] = 0
    for one, other in zip(dowker(W), dowker(W + change), strict=True):
        assert bottleneck(one, other) <= np.abs(change).max() / 2 + 1e-12


def test_whatever_holds_the_matrix() -> None:
    W = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)
    expected = [diagram.pairs for diagram in ts.dowker(W)]
    for same in (
        W.tolist(),
        torch.from_numpy(W),
        pl.DataFrame(W),
        np.asfortranarray(W),
        W[::-1],
        W * np.float32(2**60),
    ):
        assert_same_bars(same, expected)
    for dtype in (torch.float16, torch.bfloat16):
        narrow = torch.from_numpy(W).to(dtype)
        assert_same_bars(narrow, explicit(narrow.double().numpy()))


def test_without_bars() -> None:
    for W in (np.ones((1, 9)), np.ones((9, 1)), np.zeros((4, 5)), np.full((6, 5), -2.0), np.array([[-0.0]])):
        assert_same_bars(W, [np.empty((0, 2))] * 2)


@pytest.mark.parametrize(
    ("W", "words"),
    [
        (np.array([[1.0, np.nan]]), "W: 1 of 2 entries are NaN or infinite"),
        (np.array([[1.0], [-np.inf]]), "W: 1 of 2 entries are NaN or infinite"),
        (np.empty((0, 4)), "W: the matrix is empty"),
        (np.ones(4), "W: expected a 2-D matrix"),
        (np.ones((2, 2), complex), "W: expected real numbers"),
    ],
)
def test_what_is_no_matrix_is_refused(W: Any, words: str) -> None:
    for measure in (dowker, dowker_null):
        with pytest.raises(ToposcopeError, match=rf"\A{words}[^\n]*\Z"):
            measure(W)


def test_what_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.homology.memory.free_memory", lambda: 1000)
    with pytest.raises(ToposcopeError, match=r"\AW: loops of 1,000,000 entries: needs .* GB"):
        dowker(np.ones((1000, 1000)))


def test_random_matrices_have_the_spectrum_and_the_norms() -> None:
    rng = np.random.default_rng(1)
    W = rng.normal(size=(20, 30)) * np.exp(rng.normal(size=(20, 1)))
    null = dowker_null(W, draws=6)
    assert null.misfit < 1e-3
    assert [len(values) for values in null.draws.values()] == [6, 6, 6]
    again, other = dowker_null(8 * W.T, draws=6), dowker_null(W, draws=6, seed=1)
    for key, values in null.draws.items():
        np.testing.assert_allclose(values, again.draws[key], rtol=1e-9)
    assert not np.array_equal(null.draws["total"], other.draws["total"])


def test_scores() -> None:
    null = dowker_null(np.random.default_rng(2).normal(size=(24, 40)), draws=8)
    _, loops = dowker(np.eye(24, 40) + np.eye(24, 40, 1))
    n, values, x = 8, null.draws["count"], len(loops.pairs)
    unit = np.sqrt((n - 3) * n / ((n - 1) * (n + 1)))
    assert null.scores(loops)["count"] == pytest.approx(unit * (x - values.mean()) / values.std(ddof=1))
    assert dowker_null(np.ones((1, 9)), draws=5).scores(loops) == {"count": 0.0, "total": 0.0, "longest": 0.0}


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 53), ("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_significant_bits(dtype: str, bits: int) -> None:
    W = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 40))).to(getattr(torch, dtype))
    assert significant_bits(W.double().numpy()) == bits


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype"), [((24, 64), "float64"), ((64, 64), "float64"), ((40, 90), "bfloat16")])
def test_gaussian_matrices_score_as_their_null(shape: tuple[int, int], dtype: str) -> None:
    n, rng = 120, np.random.default_rng(8)
    scores = []
    for seed in range(n):
        W = torch.from_numpy(rng.normal(size=shape)).to(getattr(torch, dtype))
        scores.append(list(dowker_null(W, seed=seed).scores(dowker(W)[1]).values()))
    # Five standard errors; and a tenth of a deviation, by which totals of small matrices are below their null's.
    assert (np.abs(np.mean(scores, axis=0)) < 0.1 + 5 / np.sqrt(n)).all()
    assert (np.abs(np.std(scores, axis=0, ddof=1) - 1) < 5 / np.sqrt(2 * n) + 0.05).all()
