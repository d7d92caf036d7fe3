"""What a head computes is the same in every basis of the head, and is that of the product itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from scipy.spatial.distance import pdist, squareform

from toposcope.homology import attention_map_statistics, dowker, neural_persistence, rips
from toposcope.homology.circuits import Circuit, circuit_points, circuit_statistics, pair_products, singular_values

Array = NDArray[np.float64]
NO_PAIRS = np.empty((0, 2), np.int64)
widths = st.tuples(st.integers(2, 30), st.integers(1, 12), st.integers(2, 30))


def basis(rng: np.random.Generator, n: int, condition: float) -> Array:
    """A random matrix of a condition."""
    U, V = (np.linalg.qr(rng.normal(size=(n, n))).Q for _ in range(2))
    return np.asarray(U * np.geomspace(1, condition, n) @ V)


def assert_equal_statistics(circuit: Circuit, other: Circuit) -> None:
    found, right = (circuit_statistics(each, "M", loops=True) for each in (other, circuit))
    loops = {name: found.pop(name) for name in list(found) if name.startswith("loops.")}
    assert loops == pytest.approx({name: right.pop(name) for name in loops}, rel=0, abs=1e-10)
    assert found == pytest.approx(right, rel=1e-10, abs=0)


@examples(40)
@given(widths, st.integers(0, 2**32 - 1))
def test_no_basis_of_condition_100_moves_a_number(size: tuple[int, int, int], seed: int) -> None:
    m, r, n = size
    rng = np.random.default_rng(seed)
    left, right, A = rng.normal(size=(m, r)), rng.normal(size=(r, n)), basis(rng, r, 100)
    assert_equal_statistics(Circuit(left, right, NO_PAIRS), Circuit(left @ np.linalg.inv(A), A @ right, NO_PAIRS))


@examples(40)
@given(widths, st.booleans(), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_nor_does_one_that_commutes_with_rotary_positions(
    size: tuple[int, int, int], interleaved: bool, n_static: int, seed: int
) -> None:
    m, p, n = size
    rng = np.random.default_rng(seed)
    places = np.arange(2 * p)
    pairs = places.reshape(-1, 2) if interleaved else places.reshape(2, -1).T
    r = 2 * p + n_static
    left, right, A = rng.normal(size=(m, r)), rng.normal(size=(r, n)), np.zeros((r, r))
    for pair in pairs:
        angle, scale = rng.uniform(0, 2 * math.pi), 10 ** rng.uniform(-1, 1)
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        A[np.ix_(pair, pair)] = scale * np.array(turn)
    A[2 * p :, 2 * p :] = basis(rng, n_static, 100) if n_static else 0
    circuit, other = Circuit(left, right, pairs), Circuit(left @ np.linalg.inv(A), A @ right, pairs)
    assert_equal_statistics(circuit, other)
    assert pair_products(other) == pytest.approx(pair_products(circuit), rel=1e-10)


def test_the_numbers_are_those_of_the_product() -> None:
    rng = np.random.default_rng(0)
    circuit = Circuit(rng.normal(size=(40, 6)), rng.normal(size=(6, 31)), NO_PAIRS)
    M, found = circuit.left @ circuit.right, circuit_statistics(circuit, "M", loops=True)
    lengths = dowker(M)[1].lifetimes
    assert found["loops.count"] == len(lengths) > 0
    assert (found["loops.total"], found["loops.longest"]) == (lengths.sum(), lengths.max())
    assert circuit_statistics(circuit, "M") == {n: v for n, v in found.items() if not n.startswith("loops.")}
    assert pdist(circuit_points(circuit)) == pytest.approx(pdist(M), rel=1e-12)
    assert found["H0.total"] == pytest.approx(rips(M, max_dimension=0)[0].lifetimes.sum(), rel=1e-12)
    assert found["np_mean"] == neural_persistence(M).mean
    sigma = np.linalg.svd(M, compute_uv=False)
    assert singular_values(circuit_points(circuit)) == pytest.approx(sigma[:6], rel=1e-12)
    assert found["circuit_norm"] == pytest.approx(np.linalg.norm(M))
    assert found["stable_rank"] == pytest.approx((sigma**2).sum() / sigma[0] ** 2)


def test_rotary_distances_are_means_over_positions() -> None:
    rng = np.random.default_rng(1)
    pairs = np.array([[0, 2], [1, 3]])
    circuit = Circuit(rng.normal(size=(9, 5)), rng.normal(size=(5, 8)), pairs)
    squares, norms = [], []
    for a, b in np.ndindex(8, 8):  # a grid of both angles has the mean of all
        R = np.eye(5)
        for pair, angle in zip(pairs, (2 * math.pi * a / 8, 2 * math.pi * b / 8), strict=True):
            R[np.ix_(pair, pair)] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        M = circuit.left @ R @ circuit.right
        squares.append(squareform(pdist(M)) ** 2)
        norms.append((M**2).sum())
    assert pdist(circuit_points(circuit)) == pytest.approx(squareform(np.sqrt(np.mean(squares, axis=0))), rel=1e-12)
    assert circuit_statistics(circuit, "M")["circuit_norm"] == pytest.approx(math.sqrt(np.mean(norms)))


@pytest.mark.parametrize("pairs", [NO_PAIRS, np.array([[0, 1]])], ids=["static", "rotary"])
def test_zeros_have_no_rank(pairs: NDArray[np.int64]) -> None:
    found = circuit_statistics(Circuit(np.zeros((4, 2)), np.ones((2, 3)), pairs), "M")
    assert found["H0.total"] == found["circuit_norm"] == 0
    assert not {"stable_rank", "pair_rank"} & found.keys()


def test_maps_whose_numbers_are_known() -> None:
    previous = np.eye(6, k=-1)
    previous[0, 0] = 1
    found = attention_map_statistics(previous)  # a path
    assert found == pytest.approx(
        {"H0.total": 0, "H1.total": 0, "attention_entropy": 0, "attention_distance": 5 / 6, "first_token": 2 / 6}
        | {"diagonal": 1 / 6, "attention_peak": 5 / 6}
    )
    even = attention_map_statistics(np.full((5, 5), 0.2))
    assert even["H0.total"] == pytest.approx(4 * 0.8)
    assert even["attention_entropy"] == pytest.approx(math.log(5))
    ring = 0.5 * (np.eye(8, k=1) + np.eye(8, k=-1))
    ring[0, 7] = ring[7, 0] = 0.5
    assert attention_map_statistics(ring)["H1.total"] == pytest.approx(0.5)
