"""Plain quantities of the weights against known values, NumPy and SciPy."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import entropy, kstest
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.probes import Measurement, ProbeInput
from toposcope.probes.controls import MIN_TAIL, ControlsProbe, layer_statistics
from toposcope.probes.feature import NETWORK

Array = NDArray[np.float64]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def as_layers(matrices: Mapping[str, Array | Tensor]) -> dict[str, Layer]:
    def layer(name: str, W: Array | Tensor) -> Layer:
        return Layer(name, "other", False, "memory", in_memory(name, torch.as_tensor(W)))

    return {name: layer(name, W) for name, W in matrices.items()}


def measure(
    now: dict[str, Array], *, first: dict[str, Array] | None = None, previous: dict[str, Array] | None = None
) -> dict[str, Measurement]:
    layers = as_layers(now)
    subject = ProbeInput(
        list(layers.values()),
        frozenset([*layers, NETWORK]),
        first=as_layers(first or {}),
        previous=as_layers(previous or {}),
    )
    found = {}
    for result in ControlsProbe().measure(subject):
        assert isinstance(result, Measurement), result
        found[result.layer] = result
    return found


def statistics_of(W: Array | Tensor, **earlier: Array | Tensor) -> dict[str, float]:
    """Statistics of one matrix, after others of the same layer."""
    layers = as_layers({"w": W, **earlier})
    return layer_statistics(layers.pop("w"), layers)


def assert_statistics(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-13), name


# One matrix


@pytest.mark.parametrize(
    "W",
    [-3 * np.eye(16), np.linalg.qr(normal(0, 64, 64))[0], np.linalg.qr(normal(0, 64, 64))[0].astype(np.float32) / 3],
    ids=["diagonal", "orthogonal", "orthogonal float32"],
)
def test_equal_singular_values_are_no_power_law(W: Array) -> None:
    assert "alpha" not in statistics_of(W.astype(np.float64))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 20), (20, 1), (15, 40), (40, 15)])
def test_a_matrix_of_rank_1(m: int, n: int) -> None:
    u, v = normal(1, m), normal(2, n)
    found = statistics_of(np.outer(u, v))
    norm = math.sqrt((u @ u) * (v @ v))
    assert found["frobenius_norm"] == pytest.approx(norm, rel=1e-13)
    assert found["spectral_norm"] == pytest.approx(norm, rel=1e-13)
    assert found["stable_rank"] == pytest.approx(1, rel=1e-13)
    assert found["singular_entropy"] == pytest.approx(0, abs=1e-12)
    # What rounding leaves of the other singular values is no spectrum.
    assert "alpha" not in found


@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 30), (30, 7), (25, 25)])
def test_any_matrix(m: int, n: int) -> None:
    W = normal(m * n, m, n)
    sigma: Array = np.linalg.svd(W, compute_uv=False).astype(np.float64)
    entries = W.flatten()
    expected = {
        "frobenius_norm": np.linalg.norm(W, "fro"),
        "spectral_norm": np.linalg.norm(W, 2),
        "stable_rank": np.linalg.norm(W, "fro") ** 2 / np.linalg.norm(W, 2) ** 2,
        "max_abs": np.linalg.norm(entries, np.inf),
        "mean": math.fsum(entries) / W.size,
        "std": math.sqrt(math.fsum((x - math.fsum(entries) / W.size) ** 2 for x in entries) / W.size),
        "norm_p1": np.linalg.norm(entries, 1),
        "norm_p4": np.linalg.norm(entries, 4),
        "singular_entropy": entropy(sigma),
    }
    found = statistics_of(W)
    assert found.pop("alpha", None) == (None if min(m, n) < MIN_TAIL else pytest.approx(slow_alpha(sigma**2)))
    assert_statistics(found, {name: float(value) for name, value in expected.items()})
    assert_statistics(statistics_of(W.T), statistics_of(W))


def test_zeros() -> None:
    found = measure({"w": np.zeros((12, 15))}, first={"w": np.zeros((12, 15))})["w"]
    expected = dict.fromkeys(
        ("frobenius_norm", "spectral_norm", "max_abs", "mean", "std", "norm_p1", "norm_p4", "distance_first"), 0.0
    )
    # No ratio, angle or exponent of nothing.
    assert found.statistics == expected
    assert found.flag == "degenerate"


def assert_homogeneous(scaled: dict[str, float], plain: dict[str, float], exponent: int) -> None:
    """A power of two changes no digit of a length, and nothing of a ratio."""
    assert scaled.keys() == plain.keys()
    ratios = {"stable_rank", "singular_entropy", "alpha", "cosine_first", "cosine_previous"}
    for name, value in plain.items():
        expected = value if name in ratios else math.ldexp(value, exponent)
        assert scaled[name] == pytest.approx(expected, rel=1e-12, abs=0), name


@pytest.mark.parametrize("exponent", [-1000, -600, -100, 100, 600, 1000])
def test_tiny_and_huge_distances(exponent: int) -> None:
    matrices = {name: normal(seed, 12, 15) for seed, name in enumerate(("w", "first", "previous"))}
    scaled, plain = (
        statistics_of(w["w"], first=w["first"], previous=w["previous"])
        for w in ({name: np.ldexp(W, exponent) for name, W in matrices.items()}, matrices)
    )
    assert_homogeneous(scaled, plain, exponent)


# The power law


def slow_alpha(eigenvalues: Array) -> float:
    """Clauset, Shalizi & Newman 2009, equation 3.1, for each beginning of the tail; SciPy tells the distance."""
    tail = np.sort(eigenvalues)
    best = (math.inf, math.nan)
    for start in range(len(tail) - MIN_TAIL + 1):
        x = tail[start:]
        alpha = 1 + len(x) / math.fsum(np.log(x / x[0]))
        best = min(best, (float(kstest(x / x[0], "pareto", args=(alpha - 1,)).statistic), alpha))
    return best[1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["pareto", "exponential", "log-normal"])
def test_the_exponent_against_the_definition(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws: dict[str, Any] = {"pareto": lambda: 1 + rng.pareto(1.5, 40), "exponential": lambda: rng.exponential(size=40)}
    eigenvalues = np.asarray(draws.get(kind, lambda: rng.lognormal(size=40))())
    found = statistics_of(np.diag(np.sqrt(eigenvalues)))["alpha"]
    assert found == pytest.approx(slow_alpha(eigenvalues), rel=1e-9)


@pytest.mark.parametrize(("n", "expected"), [(MIN_TAIL - 1, False), (MIN_TAIL, True)])
def test_few_eigenvalues_have_no_exponent(n: int, expected: bool) -> None:
    assert ("alpha" in statistics_of(normal(0, n, 50))) is expected
    padded = np.pad(normal(0, n, 50), ((0, 30), (0, 0)))
    assert ("alpha" in statistics_of(padded)) is expected


# Distance travelled


def test_distances_and_angles() -> None:
    W, first, previous = (normal(seed, 6, 9) for seed in range(3))
    found = statistics_of(W, first=first, previous=previous)
    for name, other in (("first", first), ("previous", previous)):
        assert found[f"distance_{name}"] == pytest.approx(math.dist(W.flatten(), other.flatten()), rel=1e-13)
        cosine = np.vdot(W, other) / np.linalg.norm(W) / np.linalg.norm(other)
        assert found[f"cosine_{name}"] == pytest.approx(cosine, rel=1e-12)


def test_a_cosine_stays_within_its_bounds() -> None:
    for seed in range(50):
        W = normal(seed, 3, 5)
        found = statistics_of(W, first=W * 1.1, previous=-W / 3)
        assert 1 - 1e-15 <= found["cosine_first"] <= 1
        assert -1 <= found["cosine_previous"] <= -1 + 1e-15


def test_without_an_earlier_layer_there_is_no_distance() -> None:
    W = normal(0, 4, 5)
    alone = statistics_of(W)
    assert not any(name.startswith(("distance", "cosine")) for name in alone)
    assert measure({"w": W}, first={"v": W}, previous={"w": W.T})["w"].statistics == alone


@pytest.mark.parametrize("name", ["first", "previous"])
def test_an_earlier_layer_that_is_not_finite_leaves_out_its_distance(name: str) -> None:
    weights = {"v": normal(0, 4, 5), "w": normal(1, 4, 5)}
    earlier = {"v": normal(2, 4, 5), "w": np.full((4, 5), np.nan)}
    layers = as_layers(weights)
    first, previous = (as_layers(earlier if name == which else weights) for which in ("first", "previous"))
    subject = ProbeInput(list(layers.values()), frozenset([*layers, NETWORK]), first=first, previous=previous)
    found = list(ControlsProbe().measure(subject))
    v, w, network = (result for result in found if isinstance(result, Measurement))
    other = "previous" if name == "first" else "first"
    assert {f"distance_{name}", f"cosine_{name}"} <= v.statistics.keys()
    # Over the network it would be the distance of some layers only, so it is absent there too.
    for result in (w, network):
        assert not {f"distance_{name}", f"cosine_{name}"} & result.statistics.keys()
        assert f"distance_{other}" in result.statistics


# Over the network


def test_the_network_is_one_long_vector() -> None:
    now, first, previous = ({"a": normal(s, 12, 20), "b": 3 * normal(s + 9, 15, 11)} for s in range(3))
    found = measure(now, first=first, previous=previous)
    network = found[NETWORK].statistics
    vectors = [np.concatenate([W.flatten() for W in weights.values()]) for weights in (now, first, previous)]
    layers = [found[name].statistics for name in now]
    assert network == pytest.approx(
        {
            "frobenius_norm": np.linalg.norm(vectors[0]),
            "norm_p1": np.linalg.norm(vectors[0], 1),
            "norm_p4": np.linalg.norm(vectors[0], 4),
            "max_abs": np.abs(vectors[0]).max(),
            "distance_first": math.dist(vectors[0], vectors[1]),
            "distance_previous": math.dist(vectors[0], vectors[2]),
            "spectral_norm": max(layer["spectral_norm"] for layer in layers),
            **{
                name: np.mean([layer[name] for layer in layers])
                for name in (
                    "mean",
                    "std",
                    "stable_rank",
                    "singular_entropy",
                    "alpha",
                    "cosine_first",
                    "cosine_previous",
                )
            },
        },
        rel=1e-12,
    )


def test_the_network_takes_what_its_layers_have() -> None:
    now = {"a": normal(0, 12, 20), "small": normal(1, 3, 4), "zero": np.zeros((12, 20))}
    found = measure(now, previous={"small": now["a"][:3, :4]})
    network = found[NETWORK].statistics
    assert not {"distance_previous", "cosine_previous"} & network.keys()  # those of one layer are not the network's
    for name in ("alpha",):
        (value,) = [m.statistics[name] for layer, m in found.items() if name in m.statistics and layer != NETWORK]
        assert network[name] == value
    ranks = [found[layer].statistics["stable_rank"] for layer in ("a", "small")]
    assert_allclose(network["stable_rank"], np.mean(ranks))
    assert "distance_first" not in network
    assert [m.flag for m in found.values()] == ["", "", "degenerate", ""]


def test_a_layer_is_measured_as_its_transpose() -> None:
    layer = as_layers({"w": normal(0, 12, 20)})["w"]
    turned = dataclasses.replace(layer, transposed=True)
    both = [list(ControlsProbe().measure(ProbeInput([x], frozenset(["w"])))) for x in (layer, turned)]
    assert both[0] == both[1]
