"""Controls of matrices too large to be decomposed themselves, read in blocks, against NumPy on the whole."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from scipy.stats import entropy
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.dtypes import from_tensor
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.errors import ToposcopeError
from toposcope.probes import row_blocks
from toposcope.probes.controls import Spectrum, layer_statistics
from toposcope.probes.row_blocks import Widening, largest_entry

Array = NDArray[np.float64]

EPS = 2.0**-52
SHAPES = [(600, 512), (512, 600), (520, 520), (3000, 90), (90, 3000), (270_000, 1), (1, 270_000), (40_000, 7)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

shapes = st.sampled_from(SHAPES)
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32)
blocks = st.integers(1 << 14, 1 << 20)
few = examples(20)


def as_layer(W: Tensor, reads: list[tuple[int, int]] | None = None, **changes: object) -> Layer:
    """A layer in memory that notes which rows are read."""

    stored = in_memory("w", W)

    def read(start: int, stop: int) -> NDArray[Any]:
        if reads is not None:
            reads.append((start, stop))
        return stored.read(start, stop)

    entry = dataclasses.replace(stored, read=read)
    return Layer("w", "other", False, "memory", dataclasses.replace(entry, **changes))  # type: ignore[arg-type]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def stored(W: Array, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(W)).to(dtype)


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Blocks of rows of at most so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "BLOCK_BYTES", size)
        yield


def statistics_in_blocks(size: int, layer: Layer, earlier: dict[str, Layer]) -> dict[str, float]:
    with blocks_of(size):
        return layer_statistics(layer, earlier)


def singular_values(W: Tensor) -> Array:
    spectrum = Spectrum(tuple(W.shape), 1.0)
    step = row_blocks.block_length(W.shape[1])
    widened = Widening(1.0)
    for rows in torch.split(W, step):
        array = from_tensor(rows)
        spectrum.add(array, widened(array))
    return spectrum.singular_values()


HARD: dict[str, Callable[[tuple[int, int], int], Array]] = {
    "normal": lambda shape, seed: normal(seed, *shape),
    "heavy tails": lambda shape, seed: np.random.default_rng(seed).standard_t(2, size=shape).clip(-1000, 1000),
    "all positive": lambda shape, seed: 3 + normal(seed, *shape) / 8,
    "columns of many sizes": lambda shape, seed: normal(seed, *shape) * np.geomspace(1, 1e-4, shape[1]),
    "rows of many sizes": lambda shape, seed: normal(seed, *shape) * np.geomspace(1, 1e-4, shape[0])[:, None],
    "low rank and noise": lambda shape, seed: (
        normal(seed, shape[0], 3) @ normal(seed + 1, 3, shape[1]) + 1e-3 * normal(seed + 2, *shape)
    ),
    "equal rows": lambda shape, seed: np.tile(normal(seed, 1, shape[1]), (shape[0], 1)),
    "half of it zero": lambda shape, seed: normal(seed, *shape) * (np.arange(shape[0]) % 2)[:, None],
    "one value": lambda shape, seed: np.full(shape, normal(seed)),
}


@pytest.mark.slow
@few
@given(st.sampled_from(sorted(HARD)), shapes, dtypes, seeds, st.integers(-90, 90))
def test_singular_values_against_numpy(
    kind: str, shape: tuple[int, int], dtype: torch.dtype, seed: int, e: int
) -> None:
    exponent = e if dtype in (torch.bfloat16, torch.float32, torch.float64) else 0
    W = stored(np.ldexp(HARD[kind](shape, seed), exponent), dtype)
    found = singular_values(W)
    expected = np.linalg.svd(W.double().numpy(), compute_uv=False)
    assert len(found) == min(shape)
    assert (np.diff(found) <= 0).all()
    # Rounding moves an eigenvalue by max(m, n) eps of the largest; as much again is cut off as noise.
    bound = max(shape) * EPS * expected[0] ** 2
    assert (np.abs(found**2 - expected**2) <= 2 * bound).all()
    # Of the largest this leaves a few digits less than all.
    assert found[0] == pytest.approx(expected[0], rel=1e-13)
    # What is left of it is above the noise.
    assert (found[found > 0] ** 2 > bound).all()


@few
@given(st.integers(1, 8), shapes.filter(lambda shape: min(shape) >= 8), dtypes, seeds, st.integers(-6, 6))
def test_what_a_low_rank_leaves_to_rounding_is_no_spectrum(
    rank: int, shape: tuple[int, int], dtype: torch.dtype, seed: int, exponent: int
) -> None:
    """Products of small whole numbers are exact in every dtype, so the rank is exact too."""
    rng = np.random.default_rng(seed)
    factors = [rng.integers(-2, 3, size=(length, rank)).astype(np.float64) for length in shape]
    W = np.ldexp(factors[0] @ factors[1].T, exponent)
    assert (stored(W, dtype).double().numpy() == W).all()
    # The singular values of U V' are those of the triangles of U and V.
    left, right = (np.linalg.qr(factor).R for factor in factors)
    sigma = np.ldexp(np.linalg.svd(left @ right.T, compute_uv=False), exponent)
    sigma = sigma[sigma > 1e-9 * sigma[0]]
    found = singular_values(stored(W, dtype))
    assert np.count_nonzero(found) == len(sigma)
    statistics = layer_statistics(as_layer(stored(W, dtype)), {})
    assert statistics["singular_entropy"] == pytest.approx(entropy(sigma), rel=1e-9, abs=1e-12)
    assert statistics["stable_rank"] == pytest.approx((sigma**2).sum() / sigma[0] ** 2, rel=1e-11)
    assert "alpha" not in statistics


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(600, 512), (512, 600), (270_000, 2), (2, 270_000)], ids=str)
@pytest.mark.parametrize("kind", ["one value", "product"])
def test_rounding_that_adds_up_is_no_spectrum(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """All products have one sign here, and all sums round alike."""
    if kind == "one value":
        W = stored(np.full(shape, 0.1), dtype)
    elif dtype == torch.float64:
        W = stored(np.outer(*(np.random.default_rng(0).uniform(1, 2, size) for size in shape)), dtype)
    else:
        pytest.skip("rounded to fewer digits, a product is of full rank")
    found = layer_statistics(as_layer(W), {})
    assert np.count_nonzero(singular_values(W)) == 1
    assert found["singular_entropy"] == pytest.approx(0, abs=1e-12)
    assert found["stable_rank"] == pytest.approx(1, rel=1e-13)
    assert found["spectral_norm"] == pytest.approx(found["frobenius_norm"], rel=1e-13)


@pytest.mark.slow
@examples(10)
@given(st.sampled_from([(600, 512), (512, 600), (3000, 90), (90, 3000), (40, 30)]), dtypes, seeds, blocks)
@example((3000, 90), torch.bfloat16, 0, 8).via("one row at a time")
@example((90, 3000), torch.bfloat16, 0, 8).via("one row at a time")
def test_the_size_of_blocks_does_not_matter(shape: tuple[int, int], dtype: torch.dtype, seed: int, block: int) -> None:
    now, first, previous = (as_layer(stored(normal(seed + k, *shape), dtype)) for k in range(3))
    earlier = {"first": first, "previous": previous}
    found, whole = (statistics_in_blocks(b, now, earlier) for b in (block, 1 << 40))
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        # The mean and the cosines of such matrices are sums of terms of both signs.
        assert found[name] == pytest.approx(value, rel=1e-11, abs=1e-14), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(600, 512), (512, 600)], ids=str)
def test_a_large_matrix_as_numpy_has_it(shape: tuple[int, int], dtype: torch.dtype) -> None:
    W, first = (stored(normal(seed, *shape), dtype) for seed in range(2))
    w, f = (tensor.double().numpy() for tensor in (W, first))
    sigma = np.linalg.svd(w, compute_uv=False)
    expected = {
        "frobenius_norm": np.linalg.norm(w),
        "max_abs": np.abs(w).max(),
        "mean": math.fsum(w.flatten()) / w.size,
        "std": w.std(),
        "norm_p1": np.abs(w).sum(),
        "norm_p4": (w**4).sum() ** 0.25,
        "spectral_norm": sigma[0],
        "stable_rank": (sigma**2).sum() / sigma[0] ** 2,
        "singular_entropy": entropy(sigma),
        "distance_first": np.linalg.norm(w - f),
        "cosine_first": (w * f).sum() / np.linalg.norm(w) / np.linalg.norm(f),
    }
    found = layer_statistics(as_layer(W), {"first": as_layer(first)})
    assert found.pop("alpha") > 1
    assert found == pytest.approx(expected, rel=1e-11, abs=0)


@few
@given(st.sampled_from([0.0, 1e4, 1e8]), seeds, blocks)
def test_a_small_spread_about_a_large_mean(mean: float, seed: int, block: int) -> None:
    W = mean + normal(seed, 300, 200)
    entries = W.flatten()
    exact = math.fsum(entries) / W.size
    # The sum of squares about any number near the mean, corrected by its distance from it.
    spread = (math.fsum((entries - exact) ** 2) - math.fsum(entries - exact) ** 2 / W.size) / W.size
    found = statistics_in_blocks(block, as_layer(torch.from_numpy(W)), {})
    # The mean of a piece is known to a few units of its last digit; a mean of squares would be wrong by EPS mean^2.
    assert found["std"] == pytest.approx(math.sqrt(spread), rel=1e-13 + 4 * EPS * mean)
    assert found["mean"] == pytest.approx(exact, rel=4 * EPS, abs=1e-15)


# How it is read


@pytest.mark.parametrize(("dtype", "times"), [(torch.bfloat16, 1), (torch.float32, 1), (torch.float64, 2)], ids=str)
@pytest.mark.parametrize("shape", [(600, 512), (512, 600), (12, 15)], ids=str)
def test_rows_are_read_once_in_blocks(shape: tuple[int, int], dtype: torch.dtype, times: int) -> None:
    """Of float64 the largest entry has to be known first."""
    block = 8 * shape[1] * 100
    reads: dict[str, list[tuple[int, int]]] = {"w": [], "first": []}
    layers = {name: as_layer(stored(normal(0, *shape), dtype), noted) for name, noted in reads.items()}
    statistics_in_blocks(block, layers.pop("w"), layers)
    blocks = [(start, min(start + 100, shape[0])) for start in range(0, shape[0], 100)]
    for noted in reads.values():
        assert [read for read in noted if read in blocks][-len(blocks) :] == blocks
        assert sum(stop - start for start, stop in noted) == times * shape[0]


def test_what_cannot_be_read_in_turn_is_read_once() -> None:
    W = stored(normal(0, 300, 20), torch.float32)
    reads: list[tuple[int, int]] = []
    found = statistics_in_blocks(1000, as_layer(W, reads, sequential_rows=False), {})
    assert reads == [(0, 300)]
    assert found == statistics_in_blocks(1000, as_layer(W), {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_that_are_not_finite_are_counted_over_all_blocks(dtype: torch.dtype) -> None:
    W = stored(normal(0, 50, 20), dtype)
    W[3, 5], W[44, 0], W[49, 19] = math.nan, math.inf, -math.inf
    for measure in (lambda layer: statistics_in_blocks(800, layer, {}), largest_entry):
        with pytest.raises(ToposcopeError, match="layer w: 3 of 1000 entries are NaN or infinite, shape") as caught:
            measure(as_layer(W))
        assert "persistence" not in str(caught.value)


@pytest.mark.parametrize("row", [0, 44])
def test_an_earlier_layer_found_not_finite_on_the_way_is_left_out(row: int) -> None:
    W, good = (stored(normal(seed, 50, 20), torch.float32) for seed in range(2))
    bad = good.clone()
    bad[row, 1] = math.nan
    found = statistics_in_blocks(800, as_layer(W), {"first": as_layer(bad), "previous": as_layer(good)})
    assert found == statistics_in_blocks(800, as_layer(W), {"previous": as_layer(good)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_entry(dtype: torch.dtype) -> None:
    W = stored(normal(0, 50, 20), dtype)
    assert largest_entry(as_layer(W)) == float(W.abs().max())
    assert largest_entry(as_layer(-W)) == float(W.abs().max())
    assert largest_entry(as_layer(torch.zeros(3, 2, dtype=dtype))) == 0
