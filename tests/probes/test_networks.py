"""What each probe says of a layer and of all layers together, from the homology of plain matrices."""

import math
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, bottleneck, loop_births, neural_persistence, rips, statistics, wasserstein
from toposcope.homology.matrix_controls import clustering_coefficient
from toposcope.probes import Measurement, Probe, ProbeInput
from toposcope.probes.clustering import ClusteringProbe
from toposcope.probes.distances import DistancesProbe
from toposcope.probes.feature import NETWORK
from toposcope.probes.gradient_rips import GradientRipsProbe
from toposcope.probes.neural_persistence import NeuralPersistenceProbe
from toposcope.probes.probe import POOLED
from toposcope.probes.rips import RipsProbe, draw_rows

Matrices = dict[str, NDArray[np.float64]]


def matrices(seed: int) -> Matrices:
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(20, 5)), "b": 2 * rng.normal(size=(12, 8)), "c": rng.normal(size=(1, 3))}


def measure(probe: Probe, weights: Matrices, **needs: Any) -> dict[str, Measurement]:
    def layer(name: str) -> Layer:
        return Layer(name, "other", False, "memory", in_memory(name, torch.from_numpy(weights[name])))

    subject = ProbeInput([layer(name) for name in weights], frozenset([*weights, NETWORK, POOLED]), **needs)
    found = {}
    for result in probe.measure(subject):
        assert isinstance(result, Measurement), result
        found[result.layer] = result
    return found


def named(diagrams: Sequence[Diagram]) -> dict[str, float]:
    return {f"H{d.dimension}.{name}": value for d in diagrams for name, value in statistics(d).items()}


def assert_clouds(found: Mapping[str, Measurement], clouds: Matrices, extra: Mapping[str, Any], **options: Any) -> None:
    """Each layer is the persistence of its rows and the network combines them; `extra` statistics are left out."""
    rows: dict[str, dict[str, float]] = {}
    n_bars = dict.fromkeys(range(3), 0)
    for name, cloud in clouds.items():
        diagrams = rips(cloud, **options)
        rows[name] = {k: v for k, v in found[name].statistics.items() if k not in extra}
        # H0 shares the distances of H1, and may differ from that of the points in the last digit.
        assert rows[name] == pytest.approx(named(diagrams), rel=1e-13)
        assert found[name].diagrams.keys() == {f"H{d.dimension}" for d in diagrams}
        for diagram in diagrams:
            assert_allclose(found[name].diagrams[f"H{diagram.dimension}"].pairs, diagram.pairs, rtol=1e-13, atol=0)
            n_bars[diagram.dimension] += int((diagram.lifetimes > 0).sum())
        assert found[name].flag == (
            "landmarks" if diagrams[-1].cover_radius else "one point" if len(cloud) == 1 else ""
        )
    network = found[NETWORK].statistics
    combine: dict[str, Callable[[list[float]], float]] = {
        **dict.fromkeys(
            ("count", "total", "total_p2", "n_significant", "n_zero", "n_essential", "n_truncated"), math.fsum
        ),
        **dict.fromkeys(("max", "cover_radius"), max),
        **dict.fromkeys(("entropy", "entropy_normalized"), lambda values: math.fsum(values) / len(values)),
    }
    expected = {
        name: combine[name.partition(".")[2]]([row[name] for row in rows.values()])
        for name in rows["a"]
        if name.partition(".")[2] in combine
    }
    for k in range(options.get("max_dimension", 1) + 1):
        # Of landmarks the count is that of all points, and the mean that of their own bars.
        expected[f"H{k}.mean"] = expected[f"H{k}.total"] / max(n_bars[k], 1)
    assert {k: v for k, v in network.items() if k not in extra} == pytest.approx(expected, rel=1e-13)


RIPS_OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_dimension": 0},
    {"max_dimension": 2},
    {"max_points": 10},
    {"threshold": 2.5},
    {"threshold": 0.0},
]


def test_what_rips_is_expected_to_take() -> None:
    def seconds(*shapes: tuple[int, int], **options: Any) -> float:
        return RipsProbe(**options).expected_seconds({str(k): shape for k, shape in enumerate(shapes)})

    small, large = (768, 768), (3072, 768)
    assert 0 < seconds(small) < seconds(large)
    assert seconds(small, large) == pytest.approx(seconds(small) + seconds(large))
    assert seconds(large, max_dimension=0) < seconds(large, max_points=500) < seconds(large)
    assert seconds(small, large, pooled=True) > seconds(small, large)
    assert seconds(large, sample="random", max_points=500, draws=4) == pytest.approx(4 * seconds((500, 768)))
    assert seconds() == seconds(pooled=True) == 0
    shapes = {"small": small, "large": large}
    assert RipsProbe().expected_bytes(shapes) > 20 * 3072**2
    assert RipsProbe(max_points=100).expected_bytes(shapes) < 20 * 3072**2
    assert RipsProbe(pooled=True).expected_bytes(shapes) > 20 * 3840**2


@pytest.mark.parametrize(("kind", "most"), [("any", 4.5), ("signs", 2.0)])
def test_fewer_points_take_less_memory(kind: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_births, "MAX_TRIALS_PER_POINT", 100)
    shape = (2048, 2048) if kind == "any" else (4096, 12)
    rows = np.random.default_rng(0).standard_normal(shape, np.float32)
    rows = np.sign(rows) if kind == "signs" else rows
    probe = RipsProbe(max_points=50)
    probe.measure_rows(rows[:1500, :600], "w", "")  # compiled, and imported
    tracemalloc.start()
    try:
        probe.measure_rows(rows, "w", "")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # In copies of the points in float64, or in matrices of float32 of all pairs, the block of bounds.
    assert peak < most * (8 * rows.size if kind == "any" else 4 * len(rows) ** 2)


@pytest.mark.parametrize("options", RIPS_OPTIONS, ids=str)
def test_rips(options: dict[str, Any]) -> None:
    weights = matrices(0)
    assert_clouds(measure(RipsProbe(**options), weights), weights, {}, **options)


def gradients_of(batch: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(gradient) for name, gradient in matrices(1 + batch).items()}


def batches_of(gradient: Callable[[int], Any]) -> dict[str, Any]:
    """The input of a probe of gradients, from those of each batch."""
    return {"gradients": lambda n, *_: ([gradient(batch) for batch in range(n)], "")}


OF_GRADIENTS = dict.fromkeys(
    ("gradient_norm", "np_mean", "np_norm", "np_normalized", "np_mean_std", "np_mean_min", "np_mean_max")
)


@pytest.mark.parametrize("options", [o for o in RIPS_OPTIONS if "threshold" not in o], ids=str)
def test_gradient_rips(options: dict[str, Any]) -> None:
    weights, gradients = matrices(0), matrices(1)
    found = measure(GradientRipsProbe(**options), weights, inputs=batches_of(gradients_of))
    graphs = measure(NeuralPersistenceProbe(), gradients)
    for layer, graph in graphs.items():
        assert {name: found[layer].statistics[name] for name in graph.statistics} == graph.statistics
        if layer != NETWORK:
            assert_array_equal(found[layer].diagrams.pop("NP").pairs, graph.diagrams["NP"].pairs)
    assert_clouds(found, gradients, OF_GRADIENTS, **options)
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    norms[NETWORK] = math.hypot(*norms.values())
    assert {name: m.statistics["gradient_norm"] for name, m in found.items()} == pytest.approx(norms, rel=1e-13)


def test_a_zero_gradient_is_degenerate() -> None:
    found = measure(
        GradientRipsProbe(), matrices(0), inputs=batches_of(lambda _: gradients_of(0) | {"b": torch.zeros(4, 5)})
    )
    assert {layer: m.flag for layer, m in found.items() if m.flag} == {"b": "degenerate", "c": "one point"}
    assert found["b"].statistics["np_mean"] == found["b"].statistics["gradient_norm"] == 0


def test_gradients_on_several_batches() -> None:
    calls = []

    def gradients(batch: int) -> dict[str, torch.Tensor]:
        calls.append(batch)
        return gradients_of(batch)

    found = measure(GradientRipsProbe(batches=4), matrices(0), inputs=batches_of(gradients))
    assert calls == [0, 1, 2, 3]
    each = [
        measure(GradientRipsProbe(), matrices(0), inputs=batches_of(partial(lambda k, _: gradients_of(k), k)))
        for k in range(4)
    ]
    for layer, measurement in found.items():
        single = [one[layer].statistics for one in each]
        of_first = {name: value for name, value in measurement.statistics.items() if not name.endswith(".noise")}
        assert of_first == single[0]
        noise = {name: float(np.std([row[name] for row in single], ddof=1)) for name in single[0]}
        told = {n.removesuffix(".noise"): v for n, v in measurement.statistics.items() if n.endswith(".noise")}
        if layer == NETWORK:
            # All layers see the same batches: their noise may add up, and what is told is a bound.
            assert told.keys() >= {"H0.total", "H1.total", "H0.entropy", "np_mean", "gradient_norm"}
            assert all(value >= noise[name] * (1 - 1e-12) for name, value in told.items())
            assert all(value < 10 * noise[name] for name, value in told.items() if noise[name])
        else:
            assert told == pytest.approx(noise, rel=1e-12, abs=1e-15)


def test_without_gradients_there_is_nothing_to_measure() -> None:
    with pytest.raises(ToposcopeError, match="gradient_rips: needs a model and a text"):
        measure(GradientRipsProbe(), matrices(0))


def test_random_rows() -> None:
    weights = matrices(0)
    probe = RipsProbe(sample="random", max_points=11, draws=5, threshold=9.0)
    found = measure(probe, weights)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in weights}
    for name, cloud in weights.items():
        few = len(cloud) <= 11
        chosen = [np.arange(len(cloud))] * 5 if few else draw_rows(cloud, 11, 42, 5)
        for indices in chosen:
            radius = float(cdist(cloud, cloud[indices]).min(axis=1).max())
            diagrams = rips(cloud[indices], threshold=9.0)
            values = named(diagrams) | {f"H{k}.cover_radius": radius for k in (0, 1)}
            rows[name].append(values)
        single = {k: v for k, v in found[name].statistics.items() if not k.endswith(".noise")}
        means = {key: np.mean([row[key] for row in rows[name]]) for key in rows[name][0]}
        assert single == pytest.approx(means, rel=1e-13)
        assert found[name].flag == ("one point" if len(cloud) == 1 else "" if few else "random rows")
        assert_array_equal(found[name].diagrams["H1"].pairs, rips(cloud[chosen[0]], threshold=9.0)[1].pairs)
        noise = {k: v for k, v in found[name].statistics.items() if k.endswith(".noise")}
        assert noise.keys() == {f"{k}.noise" for k in single}
        totals = [row["H0.total"] for row in rows[name]]
        assert noise["H0.total.noise"] == pytest.approx(np.std(totals, ddof=1), rel=1e-12, abs=1e-15)
        assert (noise["H0.total.noise"] == 0) == (noise["H0.cover_radius.noise"] == 0) == few
    # Layers are drawn independently: variances add up.
    layers = [found[name].statistics["H0.total.noise"] for name in weights]
    assert found[NETWORK].statistics["H0.total.noise"] == pytest.approx(math.hypot(*layers), rel=1e-13)
    entropies = [found[name].statistics["H0.entropy.noise"] for name in weights]
    assert found[NETWORK].statistics["H0.entropy.noise"] == pytest.approx(math.hypot(*entropies) / 3, rel=1e-13)
    assert "H0.max.noise" not in found[NETWORK].statistics


def test_draws_are_of_the_seed_the_number_and_the_rows_alone() -> None:
    cloud = matrices(0)["a"]
    first, second = draw_rows(cloud, 7, 42, 2)
    assert len(set(first.tolist())) == 7
    assert first.tolist() == sorted(first.tolist()) != second.tolist()
    assert_array_equal(draw_rows(cloud, 7, 42, 1)[0], first)
    stored = cloud.astype(np.float32)
    assert_array_equal(draw_rows(stored, 7, 42, 1)[0], draw_rows(stored.astype(float), 7, 42, 1)[0])
    others = {"seed": draw_rows(cloud, 7, 43, 1), "rows": draw_rows(cloud * (1 + 1e-15), 7, 42, 1)}
    assert all(chosen[0].tolist() != first.tolist() for chosen in others.values())
    # In another order, and with the other zero, they are the same points.
    cloud[3, 1] = 0.0
    order = np.random.default_rng(0).permutation(20)
    permuted = np.where(cloud == 0, -0.0, cloud)[order]
    assert set(order[draw_rows(permuted, 7, 42, 1)[0]].tolist()) == set(draw_rows(cloud, 7, 42, 1)[0].tolist())


@pytest.mark.parametrize("options", RIPS_OPTIONS, ids=str)
def test_the_pooled_cloud(options: dict[str, Any]) -> None:
    weights = matrices(0)
    cloud = np.zeros((33, 8))
    cloud[:20, :5], cloud[20:32], cloud[32, :3] = weights["a"], weights["b"], weights["c"][0]
    found = measure(RipsProbe(pooled=True, **options), weights)
    assert list(found) == [POOLED]
    assert found[POOLED].statistics == named(rips(cloud, **options))


@pytest.mark.parametrize("essential", ["drop", "count"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("scale", ["layer", "network"])
def test_neural_persistence(scale: Any, p: float, essential: Any) -> None:
    weights = matrices(0)
    found = measure(NeuralPersistenceProbe(scale=scale, p=p, essential=essential), weights)
    largest = max(float(np.abs(W).max()) for W in weights.values())
    divisor: Any = "layer" if scale == "layer" else largest
    rows = []
    for name, W in weights.items():
        expected = neural_persistence(W, scale=divisor, p=p, essential=essential)
        rows.append({"np_mean": expected.mean, "np_norm": expected.norm, "np_normalized": expected.normalized})
        assert found[name].statistics == rows[-1]
        assert_array_equal(found[name].diagrams["NP"].pairs, expected.diagram.pairs)
    means = [row["np_mean"] for row in rows]
    network = {name: math.fsum(row[name] for row in rows) / 3 for name in rows[0]}
    network["np_mean_std"] = math.sqrt(math.fsum((x - network["np_mean"]) ** 2 for x in means) / 3)
    network |= {"np_mean_min": min(means), "np_mean_max": max(means)}
    assert found[NETWORK].statistics == pytest.approx(network, rel=1e-13)


@pytest.mark.parametrize(("of", "source"), [("rips", RipsProbe()), ("neural_persistence", NeuralPersistenceProbe())])
def test_distances(of: Any, source: Probe) -> None:
    now, before = measure(source, matrices(0)), measure(source, matrices(1))
    found = measure(
        DistancesProbe(of=of),
        matrices(0),
        diagrams={layer: m.diagrams for layer, m in now.items()},
        previous_diagrams={layer: m.diagrams for layer, m in before.items()},
    )
    rows: list[dict[str, float]] = []
    for layer in matrices(0):
        row = {}
        for name, diagram in now[layer].diagrams.items():
            other = before[layer].diagrams[name]
            row[f"{name}.wasserstein_1"] = wasserstein(diagram, other, order=1)
            row[f"{name}.wasserstein_2"] = wasserstein(diagram, other, order=2)
            row[f"{name}.bottleneck"] = bottleneck(diagram, other)
        assert found[layer].statistics == pytest.approx(row, rel=1e-12, abs=1e-15)
        rows.append(row)
    combine: dict[str, Callable[[list[float]], float]] = {
        "wasserstein_1": math.fsum,
        "wasserstein_2": lambda values: math.hypot(*values),
        "bottleneck": max,
    }
    expected = {name: combine[name.partition(".")[2]]([row[name] for row in rows]) for name in rows[0]}
    assert found[NETWORK].statistics == pytest.approx(expected, rel=1e-12)
    assert all(value > 0 for value in expected.values())


def test_distances_to_the_same_diagrams_are_zero() -> None:
    diagrams = {layer: m.diagrams for layer, m in measure(RipsProbe(), matrices(0)).items()}
    found = measure(DistancesProbe(), matrices(0), diagrams=diagrams, previous_diagrams=diagrams)
    assert {value for m in found.values() for value in m.statistics.values()} == {0.0}


def test_clustering() -> None:
    weights = matrices(0) | {"d": np.zeros((4, 5))}
    found = measure(ClusteringProbe(), weights)
    rows = {name: clustering_coefficient(W) for name, W in weights.items()}
    assert {name: m.statistics["coefficient"] for name, m in found.items() if name != NETWORK} == rows
    assert found[NETWORK].statistics == {"coefficient": pytest.approx(math.fsum(rows.values()) / 4, rel=1e-14)}
    assert {name: m.flag for name, m in found.items() if m.flag} == {"d": "degenerate"}
