"""Spectral measures against known values and NumPy on the whole, and streams against wholes."""

import math
import tracemalloc
from dataclasses import asdict
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import Array
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from property_examples import examples
from scipy.stats import entropy, ortho_group

from toposcope.errors import ToposcopeError
from toposcope.homology import Moments, SpectralMeasures, measures_of_singular_values, spectral_measures

MODULE = import_module("toposcope.homology.spectral_measures")  # the function has its name
SPECTRAL = ("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "stable_rank")
moderate = examples(60)
seeds = st.integers(0, 2**32)


def cloud(seed: int, n: int, d: int, *, offset: float = 0) -> Array:
    """Gaussian points of an uneven spectrum, their mean `offset` times their spread from the origin."""
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.5
    moved: Array = points @ generator.normal(size=(d, d)) / d**0.5 + offset * generator.normal(size=d)
    return moved


def expected(X: Array) -> dict[str, float]:
    """Straight from the definitions, of all rows at once."""
    n = len(X)
    deviations = X - X.mean(axis=0)
    sigma = np.linalg.svd(deviations, compute_uv=False)
    eigenvalues = np.linalg.eigvalsh(np.cov(X.T).reshape(X.shape[1], -1))[::-1]
    positive = eigenvalues[eigenvalues > 1e-12 * eigenvalues[0]]
    half = len(positive) // 2
    ranks = np.arange(1, half + 1)
    slope = np.polyfit(np.log(ranks), np.log(positive[:half]), 1, w=ranks**-0.5)[0] if half > 1 else math.nan
    cosines = (X / np.linalg.norm(X, axis=1)[:, None]) @ (X / np.linalg.norm(X, axis=1)[:, None]).T
    return {
        "rankme": math.exp(entropy(sigma)),
        "effective_rank": math.exp(entropy(positive)),
        "participation_ratio": positive.sum() ** 2 / (positive**2).sum(),
        "eigenspectrum_decay": -slope,
        "stable_rank": positive.sum() / positive[0],
        "top_eigenvalue": positive[0],
        "anisotropy": cosines[~np.eye(n, dtype=bool)].mean(),
        "mean_norm": np.linalg.norm(X, axis=1).mean(),
        "rms_radius": math.sqrt((deviations**2).sum() / n),
        "n_points": n,
        "n_zero": 0,
    }


def streamed(X: Any, sizes: list[int]) -> SpectralMeasures:
    """Of the rows in blocks of these sizes, over and over, an empty one between."""
    moments = Moments(X.shape[1])
    start = 0
    while start < len(X):
        for size in sizes:
            moments.add(X[start : start + size])
            start += size
    return moments.measures()


def assert_same(first: SpectralMeasures, second: SpectralMeasures | dict[str, float], rtol: float) -> None:
    other = asdict(second) if isinstance(second, SpectralMeasures) else second
    assert asdict(first).keys() == other.keys()
    for name, value in asdict(first).items():
        assert value == pytest.approx(other[name], rel=rtol, abs=1e-300, nan_ok=True), name


# Known values


def test_spectrum_of_a_power_law() -> None:
    found = measures_of_singular_values(np.arange(1, 1001) ** -0.5)
    assert found["participation_ratio"] == pytest.approx(34.0842483, abs=5e-8)
    assert found["effective_rank"] == pytest.approx(179.650093, abs=5e-7)
    assert found["rankme"] == pytest.approx(786.642798, abs=1e-6)
    assert found["eigenspectrum_decay"] == pytest.approx(1, abs=1e-12)
    assert found["stable_rank"] == pytest.approx((1 / np.arange(1, 1001)).sum(), rel=1e-14)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.floats(1e-200, 1e200), st.randoms())
def test_measures_of_singular_values(sigma: list[float], scale: float, random: Any) -> None:
    # What is at the floor of the decay may fall to either side of it in another unit.
    assume(not np.isclose(np.array(sigma), 1e-6 * max(sigma), rtol=1e-9, atol=0).any())
    found = measures_of_singular_values(sigma)
    count = len(sigma)
    assert 1 <= found["stable_rank"] <= found["participation_ratio"] * (1 + 1e-12)
    assert found["participation_ratio"] <= found["effective_rank"] * (1 + 1e-12)
    assert found["effective_rank"] <= found["rankme"] * (1 + 1e-9) <= count * (1 + 2e-9)
    random.shuffle(sigma)
    again = measures_of_singular_values([*(scale * np.array(sigma)), 0.0])
    assert_allclose(list(again.values()), list(found.values()), rtol=1e-9, atol=1e-9)


# Against NumPy on the whole


@moderate
@given(seeds, st.integers(2, 60), st.integers(1, 40), st.sampled_from([0.0, 1.0, 1e4]))
def test_definitions(seed: int, n: int, d: int, offset: float) -> None:
    X = cloud(seed, n, d, offset=offset)
    found, wanted = asdict(spectral_measures(X)), expected(X)
    # Rounding of the oracle's own mean grows with the offset; singular values of noise are not in it.
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], rel=1e-8 if offset else 1e-9, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("offset", [0, 1, 1e4])
@pytest.mark.parametrize("seed", [0, 1])
def test_streaming_equals_whole(seed: int, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    X = cloud(seed, 3000, 24, offset=offset)
    whole = spectral_measures(X)  # decomposed itself
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 24 * 100)
    generator = np.random.default_rng(seed)
    for order in (np.arange(3000), generator.permutation(3000)):
        for sizes in ([1], [7, 0, 100, 1], [100], [3000]):
            assert_same(streamed(X[order], sizes), whole, 1e-10)


def test_outlying_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the states of a first token: far longer than all others.
    X = cloud(3, 2000, 16, offset=1)
    X[:3] *= 1e4
    whole = spectral_measures(X)
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 16 * 50)
    assert_same(streamed(X, [64]), whole, 1e-10)
    assert_same(streamed(X[::-1], [64]), whole, 1e-10)


@moderate
@given(seeds, st.integers(1, 90), st.integers(1, 12), st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any))
def test_blocks_do_not_change_a_digit(seed: int, n: int, d: int, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 1)  # a buffer of d rows
        X = cloud(seed, n, d, offset=10) * np.geomspace(1, 1e6, n)[:, None]
        assert_same(streamed(X, sizes), streamed(X, [n]), 0)


def test_measuring_in_between_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 5 * 20)
    X = cloud(0, 130, 5)
    moments = Moments(5)
    for start in range(0, 130, 13):
        moments.add(X[start : start + 13])
        assert moments.n_points == start + 13
        assert moments.measures() == streamed(X[: start + 13], [200])
        assert moments.measures(centred=False) == moments.measures(centred=False)
    assert_same(moments.measures(), spectral_measures(X), 1e-10)


def test_uncentred_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    X = cloud(0, 1000, 10, offset=2)
    whole = spectral_measures(X, centred=False)
    sigma = np.linalg.svd(X, compute_uv=False)
    assert whole.rankme == pytest.approx(math.exp(entropy(sigma)), rel=1e-12)
    assert whole.top_eigenvalue == pytest.approx(sigma[0] ** 2 / 1000, rel=1e-12)
    assert whole.rms_radius == pytest.approx(math.sqrt((X**2).sum() / 1000), rel=1e-12)
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 10 * 30)
    assert_same(spectral_measures(X, centred=False), whole, 1e-10)


# Invariance


@moderate
@given(seeds, st.integers(4, 40), st.integers(2, 20), st.floats(1e-3, 1e3))
def test_scale_rotation_order_and_repetition(seed: int, n: int, d: int, scale: float) -> None:
    X = cloud(seed, n, d, offset=1)
    before = asdict(spectral_measures(X))
    turned = X @ ortho_group.rvs(d, random_state=seed % 2**32) * scale
    after = asdict(spectral_measures(turned[np.random.default_rng(seed).permutation(n)]))
    for name, degree in {"top_eigenvalue": 2, "mean_norm": 1, "rms_radius": 1}.items():
        after[name] /= scale**degree
    assert_allclose(list(after.values()), list(before.values()), rtol=1e-8, atol=1e-9)
    twice = spectral_measures(np.concatenate([X, X]))
    for name in (*SPECTRAL, "mean_norm", "rms_radius"):
        assert getattr(twice, name) == pytest.approx(before[name], rel=1e-8, abs=1e-9, nan_ok=True), name
    assert twice.top_eigenvalue == pytest.approx(before["top_eigenvalue"] * 2 * (n - 1) / (2 * n - 1), rel=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", [-1000, -600, 600, 1000])
@pytest.mark.parametrize("direct", [1, 1 << 18])
def test_tiny_and_huge_points(exponent: int, direct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", direct)
    X = cloud(0, 40, 6, offset=1)
    before, after = spectral_measures(X), spectral_measures(np.ldexp(X, exponent))
    for name in (*SPECTRAL, "anisotropy"):
        assert getattr(after, name) == getattr(before, name)
    assert after.rms_radius == math.ldexp(before.rms_radius, exponent)
    assert after.top_eigenvalue == (0 if exponent < 0 else math.inf)


def test_unit_follows_the_largest_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", 1)
    X = cloud(0, 60, 4) * np.geomspace(1e-3, 1e3, 60)[:, None]
    assert_same(streamed(X, [1]), streamed(X, [60]), 0)
    assert_same(
        streamed(np.concatenate([np.zeros((9, 4)), X * 1e-300, X]), [5]),
        spectral_measures(np.concatenate([X, np.zeros((9, 4)), X * 1e-300])),
        1e-10,
    )


# Rank and noise


def test_few_texts_in_many_dimensions_lose_nothing() -> None:
    generator = np.random.default_rng(0)
    left = np.linalg.qr(generator.normal(size=(30, 30)) - 0)[0]
    left = np.linalg.qr(np.column_stack([np.ones(30), left[:, :29]]))[0][:, 1:]  # centred
    sigma = 10.0 ** -np.arange(13)
    X = (left[:, :13] * sigma) @ ortho_group.rvs(700, random_state=0)[:13]
    found = spectral_measures(X)
    wanted = measures_of_singular_values(sigma)
    for name in ("rankme", "effective_rank", "participation_ratio", "stable_rank"):
        assert getattr(found, name) == pytest.approx(wanted[name], rel=1e-12)
    assert found.eigenspectrum_decay == pytest.approx(wanted["eigenspectrum_decay"], rel=1e-3)


def test_a_steep_spectrum_decays_alike_streamed_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    left = generator.normal(size=(20_000, 32))
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    sigma = 2.0 ** -np.arange(32)
    X = (left * sigma) @ ortho_group.rvs(32, random_state=0)
    by_blocks = streamed(X, [700])
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", X.size)
    whole = spectral_measures(X)
    # Half of the 20 that are above 1e-6 of the largest.
    slope = np.polyfit(np.log(np.arange(1, 11)), 2 * np.log(sigma[:10]), 1, w=np.arange(1, 11) ** -0.5)[0]
    for decay in (by_blocks.eigenspectrum_decay, whole.eigenspectrum_decay):
        assert decay == pytest.approx(-slope, rel=1e-9)
    assert measures_of_singular_values(sigma)["eigenspectrum_decay"] == pytest.approx(-slope, rel=1e-12)
    assert by_blocks.rankme == pytest.approx(whole.rankme, rel=3e-5)


def test_rounding_noise_is_no_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(900, 3)) @ generator.normal(size=(3, 40)) + 100
    for direct in (1 << 18, 1):
        monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", direct)
        found = spectral_measures(X)
        assert math.isnan(found.eigenspectrum_decay)  # of 3 eigenvalues half is one
        assert found.rankme <= 3


# Degenerate clouds


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("direct", [1, 1 << 18])
@pytest.mark.parametrize("value", [0.1, 1e4 / 3, -1e-300])
def test_equal_points(value: float, direct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "MAX_DIRECT_ENTRIES", direct)
    found = spectral_measures(np.full((50, 3), value))
    assert all(math.isnan(getattr(found, name)) for name in SPECTRAL)
    assert (found.top_eigenvalue, found.rms_radius, found.n_points, found.n_zero) == (0, 0, 50, 0)
    assert found.anisotropy == pytest.approx(1, abs=1e-14)
    assert found.mean_norm == pytest.approx(abs(value) * 3**0.5)
    assert spectral_measures(np.full((50, 3), value), centred=False).rankme == pytest.approx(1)


@pytest.mark.filterwarnings("error")
def test_nothing_one_point_and_zeros() -> None:
    nothing = Moments(3).measures()
    assert (nothing.n_points, nothing.n_zero) == (0, 0)
    assert all(math.isnan(value) for name, value in asdict(nothing).items() if not name.startswith("n_"))
    one = spectral_measures([[3.0, 4.0]])
    assert (one.mean_norm, one.rms_radius, one.n_points) == (5, 0, 1)
    assert math.isnan(one.top_eigenvalue)
    assert math.isnan(one.anisotropy)
    zeros = spectral_measures(np.zeros((4, 2)))
    assert (zeros.n_zero, zeros.mean_norm, zeros.top_eigenvalue) == (4, 0, 0)
    assert math.isnan(zeros.anisotropy)


def test_zero_vectors_have_no_direction() -> None:
    X = np.array([[1.0, 0], [0, 0], [0, 1.0], [0, 0], [1.0, 1.0], [-1e-200, 0]])
    found = spectral_measures(X)
    half = 0.5**0.5
    assert found.n_zero == 2
    assert found.anisotropy == pytest.approx((0 + half - 1 + half + 0 - half) / 6, abs=1e-15)


def test_a_million_rows_take_the_memory_of_a_square() -> None:
    block = np.random.default_rng(0).normal(size=(4096, 16)).astype(np.float32)
    tracemalloc.start()
    moments = Moments(16)
    for _ in range(250):
        moments.add(block)
    found = moments.measures()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.n_points == 1_024_000
    assert peak < 3 * 8 * (1 << 18)
    once = spectral_measures(block)
    for name in (*SPECTRAL, "mean_norm", "rms_radius"):
        assert getattr(found, name) == pytest.approx(getattr(once, name), rel=1e-10), name
    assert found.top_eigenvalue == pytest.approx(once.top_eigenvalue * 4095 / 4096 * 1_024_000 / 1_023_999, rel=1e-10)


# Dtypes and bad input


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_are_widened(dtype: torch.dtype) -> None:
    X = torch.from_numpy(cloud(0, 50, 4)).to(dtype)
    assert spectral_measures(X.requires_grad_()) == spectral_measures(X.detach().double().numpy())
    assert spectral_measures(X.detach().double().numpy().astype(np.longdouble)) == spectral_measures(X)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(3), r"rows of 3 entries, got float64 of shape \(3,\)"),
        (np.ones((2, 4)), r"rows of 3 entries, got float64 of shape \(2, 4\)"),
        (np.ones((2, 3), int), "floating-point rows of 3 entries, got int64"),
        (np.array([[1.0, np.nan, np.inf], [0, 0, 1]]), "2 of 6 entries are NaN or infinite"),
        (np.full((1, 3), -np.inf), "3 of 3 entries"),
        (np.array([[np.nan, 1, 1], [1, 2, 3], [5, 1, 1]]), "1 of 9 entries"),
    ],
)
def test_bad_blocks_are_refused_and_leave_no_trace(values: Any, message: str) -> None:
    moments = Moments(3)
    moments.add(np.eye(3))
    with pytest.raises(ToposcopeError, match=rf"\Astates of step 4: [^\n]*{message}[^\n]*\Z"):
        moments.add(values, name="states of step 4")
    assert moments.measures() == spectral_measures(np.eye(3))


@pytest.mark.parametrize("values", [[], [[]], np.empty((0, 4)), np.ones(3), np.ones((2, 2, 2)), [["a"]]])
def test_bad_points_are_refused(values: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Apoints: [^\n]*\Z"):
        spectral_measures(values)


@pytest.mark.parametrize("values", [np.ones((2, 2)), [-1.0], [np.nan], ["a"], [1j]])
def test_bad_singular_values_are_refused(values: Any) -> None:
    with pytest.raises(ToposcopeError, match=r"\Asigma: [^\n]*\Z"):
        measures_of_singular_values(values)
    with pytest.raises(ToposcopeError, match=r"\Adimension: [^\n]*\Z"):
        Moments(0)
