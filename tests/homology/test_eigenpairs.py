"""Extreme eigenvalues, trace and density from products with vectors, against whole matrices."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.homology.eigenpairs import Eigenpairs, extreme_eigenpairs
from toposcope.homology.spectral_density import rows_kept, spectral_density
from toposcope.typing import Matrix, Vector

A = np.array([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_spectrum(values: Vector, seed: int = 0) -> Matrix:
    basis, _ = np.linalg.qr(rng(seed).normal(size=(len(values), len(values))))
    matrix: Matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def search(matrix: Matrix, n_largest: int, n_smallest: int = 1, max_products: int = 400) -> list[Eigenpairs]:
    limits: Any = {"max_products": max_products, "rng": rng(1)}
    return list(extreme_eigenpairs(lambda v: matrix @ v, len(matrix), n_largest, n_smallest, **limits))


REPEATED = np.concatenate([[10.0, 10, 10, 8, 8, 7.9], rng(3).normal(size=72) * 0.5, [-5, -5]])


@pytest.mark.parametrize("limit", [*range(10, 30), 35, 40, 50, 60, 80])
def test_no_ghost_and_no_duplicate_at_any_iteration_limit(limit: int) -> None:
    for pairs, sign in zip(search(with_spectrum(REPEATED), 6, 2, limit), (-1, 1), strict=True):
        # what is reliable is the list itself, multiplicities included
        expected = sign * np.sort(sign * REPEATED)[: pairs.n_reliable]
        assert_allclose(pairs.values[: pairs.n_reliable], expected, atol=1e-6)
        assert_allclose(pairs.vectors @ pairs.vectors.T, np.eye(len(pairs.vectors)), atol=1e-10)


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(10, 2000), st.integers(1, 5))
@examples(60)
def test_reliable_pairs_are_those_of_the_whole_matrix(seed: int, n: int, limit: int, top: int) -> None:
    draw = rng(seed)
    # steps of 1/2, so that many eigenvalues are equal
    spectrum = np.round(draw.normal(size=n) * draw.choice([1, 10])) / 2
    matrix = with_spectrum(spectrum, seed)
    found = extreme_eigenpairs(lambda v: matrix @ v, n, top, 1, max_products=limit, rng=draw)
    scale = max(float(np.abs(spectrum).max()), 1e-12)
    for pairs, sign in zip(found, (-1, 1), strict=True):
        expected = sign * np.sort(sign * spectrum)[: pairs.n_reliable]
        assert_allclose(pairs.values[: pairs.n_reliable], expected, atol=2e-3 * scale)
        images = pairs.vectors @ matrix
        residuals = np.linalg.norm(images - pairs.values[:, None] * pairs.vectors, axis=1)
        assert_allclose(pairs.residuals, residuals, atol=1e-12 * scale)
    if limit >= 20 * n:
        assert found[0].n_reliable == min(top, n)


@pytest.mark.parametrize("scale", [1, 1e-30, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("outer", [[9.0, 9, 9, 7, 5, 5, 4], [50.0, 20, 20, 10, 3, 3, 3], [1.0] * 7, [0.0] * 7])
def test_copies_are_found_at_any_scale(outer: list[float], dtype: Any, scale: float) -> None:
    """From one start only one of several equal eigenvalues can be reached."""
    n_calls, inner = 0, np.linspace(-1, 1, 3000) * (max(outer) > 1)
    diagonal = (np.concatenate([outer, inner]) * scale).astype(dtype)

    def product(vector: Vector) -> Vector:
        nonlocal n_calls
        n_calls += 1
        return diagonal * vector

    largest, _ = extreme_eigenpairs(product, len(diagonal), 7, 0, rng=rng(), dtype=dtype)
    assert largest.n_reliable == 7
    assert_allclose(largest.values, np.sort(diagonal)[::-1][:7], atol=1e-5 * max(outer) * scale)
    assert_allclose(largest.vectors @ largest.vectors.T, np.eye(7), atol=1e-5)
    assert n_calls < 300


def test_the_same_call_gives_the_same_bytes() -> None:
    (first, _), (second, _) = (search(with_spectrum(REPEATED), 5) for _ in range(2))
    assert first.values.tobytes() == second.values.tobytes()
    assert first.vectors.tobytes() == second.vectors.tobytes()


OF_AN_OPERATOR: dict[str, Any] = {
    "extreme_eigenpairs": lambda product, n: extreme_eigenpairs(product, n, 2, rng=rng()),
    "extreme_eigenpairs, float32": lambda product, n: extreme_eigenpairs(product, n, 1, rng=rng(), dtype=np.float32),
    "spectral_density": lambda product, n: spectral_density(product, n, 3, 4, rng()),
    "spectral_density, float32": lambda product, n: spectral_density(product, n, 3, 4, rng(), np.float32),
}


@pytest.mark.parametrize("name", OF_AN_OPERATOR)
@pytest.mark.parametrize("bad_call", [0, 1, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "one entry more", "a scalar", "a name"])
def test_products_that_are_no_finite_vectors_are_refused(name: str, bad_call: int, bad: Any) -> None:
    """Whichever call gives them: one entry is enough, and no warning comes before the error."""
    n, n_calls = 9, 0

    def product(vector: np.ndarray) -> Any:
        nonlocal n_calls
        n_calls += 1
        image = np.arange(1.0, n + 1) * vector
        if n_calls <= bad_call:
            return image
        if bad in ("one entry more", "a scalar", "a name"):
            return {"one entry more": np.append(image, 0.0), "a scalar": 1.0, "a name": "x"}[bad]
        image[n_calls % n] = bad
        return image

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ToposcopeError, match=r"\Aproduct: [^\n]*\Z"):
            OF_AN_OPERATOR[name](product, n)


# Trace and density


def known_of(matrix: Matrix, count: int) -> Eigenpairs:
    return search(matrix, count, 0)[0]


def test_a_trace_has_no_error_where_all_that_matters_is_known() -> None:
    assert spectral_density(lambda v: A @ v, 3, 2, 2, rng(), known=known_of(A, 3)).trace()[0] == pytest.approx(6)
    matrix = with_spectrum(np.concatenate([[90.0, 40, 30], np.zeros(97)]))
    value, error = spectral_density(lambda v: matrix @ v, 100, 4, 5, rng(), known=known_of(matrix, 3)).trace()
    assert value == pytest.approx(160, rel=1e-6)
    assert error < 1e-6


@pytest.mark.parametrize("n_known", [0, 2])
def test_the_standard_error_is_that_of_repeated_estimates(n_known: int) -> None:
    spectrum = np.concatenate([[50.0, 30], rng(5).normal(size=58)])
    matrix = with_spectrum(spectrum)
    known = known_of(matrix, n_known) if n_known else None
    found = [spectral_density(lambda v: matrix @ v, 60, 8, 3, rng(k), known=known).trace() for k in range(400)]
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(spectrum.sum(), abs=4 * values.std() / 20)
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.2)
    assert values.std() < (4 if known else 60)


def test_weights_sum_to_one_and_moments_are_exact() -> None:
    spectrum = rng(2).normal(size=40) + 1
    matrix = with_spectrum(spectrum)
    found = spectral_density(lambda v: matrix @ v, 40, 6, 5, rng(7))
    assert found.nodes.shape == found.weights.shape == (6, 5)
    assert_allclose(found.weights.sum(axis=1), 1, atol=1e-14)
    assert (found.weights >= 0).all()
    starts = rng(7)
    for nodes, weights in zip(found.nodes, found.weights, strict=True):
        start = starts.standard_normal(40)
        start /= np.linalg.norm(start)
        for power in range(10):
            exact = start @ np.linalg.matrix_power(matrix, power) @ start
            assert weights @ nodes**power == pytest.approx(exact, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_density_with_few_vectors_in_memory_has_its_shares(
    dtype: type[np.float32 | np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without most of the orthogonality outliers have copies; their weights add up to those of the originals."""
    spectrum = np.concatenate([[400.0, 100, 60, 20, -30], rng(2).normal(size=800), np.full(2000, 1e-3)])
    diagonal = spectrum.astype(dtype)
    monkeypatch.setattr(import_module("toposcope.homology.spectral_density"), "MAX_BASIS_BYTES", 1)
    assert rows_kept(len(diagonal), 30, 4) == 2
    few = spectral_density(lambda v: diagonal * v, len(diagonal), 10, 30, rng(), dtype)
    # Not near the 2000 equal eigenvalues, which 30 nodes from -30 to 400 place to some tenths, by their rounding.
    for low, high in ((4.0, np.inf), (-np.inf, -4.0), (-np.inf, -1.0), (-1.0, 0.5), (150.0, 500.0)):
        share, error = few.share(low, high)
        assert abs(share - ((spectrum > low) & (spectrum <= high)).mean()) <= 4 * error + 0.03
        assert error < 0.1
    assert_allclose(few.weights.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("n_known", [0, 5])
def test_shares_of_a_spectrum_lie_within_their_errors(n_known: int) -> None:
    spectrum = np.concatenate([np.full(60, -1.0), np.full(100, 1.0), np.full(40, 5.0)])
    matrix = with_spectrum(spectrum)
    found = spectral_density(
        lambda v: matrix @ v, 200, 40, 10, rng(), known=known_of(matrix, n_known) if n_known else None
    )
    for low, high, share in ((-np.inf, 0, 0.3), (0, 2, 0.5), (2, np.inf, 0.2)):
        value, error = found.share(low, high)
        assert abs(value - share) <= 4 * error
        assert error < 0.05
    # three eigenvalues: all starts are exhausted after three steps, and nothing is lost or gained
    assert_allclose(found.weights.sum(axis=1), 1, atol=1e-12)
