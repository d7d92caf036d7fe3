"""Controls that mimic topology: the same statistics of permuted weights, and as many random projections."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.kernels.sign_projections import add_sign_projections
from toposcope.probes import Measurement, Probe, ProbeInput
from toposcope.probes.feature import NETWORK
from toposcope.probes.neural_persistence import NeuralPersistenceProbe
from toposcope.probes.placebo_twin import PlaceboTwinProbe, permuted
from toposcope.probes.random_projections import DEFAULT_COUNT, RandomProjectionsProbe, sign_projections
from toposcope.probes.rips import RipsProbe

Array = NDArray[np.float64]
SHAPES = {"layers.0.attn.proj.weight": (16, 16), "layers.0.mlp.fc1.weight": (40, 16)}


def normal(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def as_layer(name: str, W: Array | Tensor, *, transposed: bool = False) -> Layer:
    stored = torch.as_tensor(W)
    return Layer(name, "other", transposed, "memory", in_memory(name, stored.T.contiguous() if transposed else stored))


def measure(probe: Probe, weights: Mapping[str, Array | Tensor]) -> dict[str, Measurement]:
    layers = [as_layer(name, W) for name, W in weights.items()]
    found = {}
    for result in probe.measure(ProbeInput(layers, frozenset([*weights, NETWORK]))):
        assert isinstance(result, Measurement), result
        found[result.layer] = result
    return found


def projections(weights: Mapping[str, Array | Tensor], **options: int) -> Array:
    statistics = measure(RandomProjectionsProbe(**options), weights)[NETWORK].statistics
    assert list(statistics) == [f"projection_{k}" for k in range(1, len(statistics) + 1)]
    return np.array(list(statistics.values()))


# Permuted weights


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_permutation_keeps_the_entries_exactly(dtype: type[np.floating]) -> None:
    W = np.random.default_rng(0).normal(size=(30, 17)).astype(dtype)
    before = W.copy()
    twin = permuted(W, 1)
    assert (twin.shape, twin.dtype) == (W.shape, W.dtype)
    assert_array_equal(np.sort(twin, axis=None), np.sort(W, axis=None))
    assert math.fsum(map(float, twin.ravel() ** 2)) == math.fsum(map(float, W.ravel() ** 2))
    assert (twin != W).mean() > 0.9
    assert (twin != permuted(W, 2)).mean() > 0.9
    assert_array_equal(permuted(W, 1), twin)
    assert_array_equal(W, before)


def test_the_twin_depends_on_the_entries_alone() -> None:
    """Structure is gone: any two arrangements of the same entries have the same twin."""
    plain = normal(0)
    rng = np.random.default_rng(1)
    rearranged = {name: rng.permuted(W.reshape(-1)).reshape(W.shape) for name, W in plain.items()}
    found, expected = (measure(PlaceboTwinProbe(), weights) for weights in (rearranged, plain))
    assert found.keys() == expected.keys() == {*SHAPES, NETWORK}
    for layer, measurement in found.items():
        assert measurement.statistics == expected[layer].statistics
    assert measure(NeuralPersistenceProbe(), rearranged) != measure(NeuralPersistenceProbe(), plain)


def test_the_twin_has_the_statistics_of_topology() -> None:
    weights = normal(0)
    twin = measure(PlaceboTwinProbe(), weights)
    topology = [measure(probe, weights) for probe in (NeuralPersistenceProbe(), RipsProbe())]
    for layer, measurement in twin.items():
        names = [name for found in topology for name in found[layer].statistics]
        assert sorted(measurement.statistics) == sorted(names)


def test_layers_of_one_shape_are_permuted_each_in_its_own_way() -> None:
    W = np.random.default_rng(0).normal(size=(20, 20))
    found = measure(PlaceboTwinProbe(), {"a": W, "b": W})
    assert found["a"].statistics["H0.total"] != found["b"].statistics["H0.total"]


# Random projections


def test_as_many_projections_as_topological_statistics() -> None:
    weights = normal(0)
    topology = [measure(probe, weights)[NETWORK].statistics for probe in (NeuralPersistenceProbe(), RipsProbe())]
    assert sum(map(len, topology)) == DEFAULT_COUNT
    assert len(projections(weights)) == DEFAULT_COUNT


def test_projections_are_linear() -> None:
    a, b = normal(0), normal(1)
    sums = {name: a[name] + 2.5 * b[name] for name in SHAPES}
    assert_allclose(projections(sums), projections(a) + 2.5 * projections(b), rtol=0, atol=1e-11)
    assert_array_equal(projections({name: -2 * W for name, W in a.items()}), -2 * projections(a))


def test_directions_are_signs_that_do_not_depend_on_the_weights() -> None:
    shape, count = (3, 4), 70
    units = np.eye(12).reshape(12, *shape)
    signs = np.array([projections({"w": unit}, count=count) for unit in units])
    assert set(signs.ravel()) == {-1.0, 1.0}
    W = np.random.default_rng(0).normal(size=shape)
    assert_allclose(projections({"w": W}, count=count), W.ravel() @ signs, rtol=0, atol=1e-13)
    # Fewer projections are the first of more.
    assert_array_equal(projections({"w": W}, count=5), projections({"w": W}, count=count)[:5])


def test_shapes_names_and_seeds_have_directions_of_their_own() -> None:
    W = np.random.default_rng(0).normal(size=(12, 6))
    found = [
        projections({"w": W}),
        projections({"v": W}),
        projections({"w": W.reshape(6, 12)}),
        projections({"w": np.vstack([W, np.zeros((1, 6))])}),
        projections({"w": W}, seed=1),
    ]
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            assert (one != other).mean() > 0.9
    assert_array_equal(projections({"w": W}), found[0])


@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_of_rows_do_not_matter(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    W = np.random.default_rng(0).normal(size=(50, 7))
    layer = as_layer("w", W, transposed=transposed)
    expected = sign_projections(layer, 30, 0)
    for block in (1, 8 * 21, 10**6):
        monkeypatch.setattr("toposcope.probes.row_blocks.BLOCK_BYTES", block)
        assert_array_equal(sign_projections(layer, 30, 0), expected)
    assert_allclose(expected, sign_projections(as_layer("w", W), 30, 0), rtol=0, atol=1e-12)


def test_signs_are_the_bits_of_splitmix64() -> None:
    """Its published outputs for the seed 1234567; so a study is continued with the directions it began with."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    for position, word in enumerate(published):
        sums = np.zeros(64)
        add_sign_projections(np.ones((1, 1)), position, 1, 1, np.uint64(1234567), sums)
        assert sum(1 << k for k in range(64) if sums[k] > 0) == word
