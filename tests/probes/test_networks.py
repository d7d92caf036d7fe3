"""What each probe says of a layer and of all layers together, from the homology of plain matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats import Entry
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, bottleneck, neural_persistence, rips, statistics, wasserstein
from toposcope.probes import Measurement, Probe, Subject
from toposcope.probes.distances import DistancesProbe
from toposcope.probes.gradient_rips import GradientRipsProbe
from toposcope.probes.neural_persistence import NeuralPersistenceProbe
from toposcope.probes.probe import NETWORK, POOLED
from toposcope.probes.rips import RipsProbe

Matrices = dict[str, NDArray[np.float64]]


def matrices(seed: int) -> Matrices:
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(20, 5)), "b": 2 * rng.normal(size=(12, 8)), "c": rng.normal(size=(1, 3))}


def measure(probe: Probe, weights: Matrices, **needs: Any) -> dict[str, Measurement]:
    def layer(name: str) -> Layer:
        tensor = torch.from_numpy(weights[name])
        entry = Entry(name, tuple(tensor.shape), "float64", lambda start, stop: tensor[start:stop])
        return Layer(name, "other", False, "memory", entry)

    subject = Subject([layer(name) for name in weights], frozenset([*weights, NETWORK, POOLED]), **needs)
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
    for name, cloud in clouds.items():
        diagrams = rips(cloud, **options)
        rows[name] = {k: v for k, v in found[name].statistics.items() if k not in extra}
        assert rows[name] == named(diagrams)
        assert found[name].diagrams.keys() == {f"H{d.dimension}" for d in diagrams}
        for diagram in diagrams:
            assert_array_equal(found[name].diagrams[f"H{diagram.dimension}"].pairs, diagram.pairs)
        assert found[name].flag == ("landmarks" if diagrams[-1].cover_radius else "")
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
        expected[f"H{k}.mean"] = expected[f"H{k}.total"] / max(expected[f"H{k}.count"], 1)
    assert {k: v for k, v in network.items() if k not in extra} == pytest.approx(expected, rel=1e-13)


RIPS_OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_dimension": 0},
    {"max_dimension": 2},
    {"max_points": 10},
    {"threshold": 2.5},
    {"threshold": 0.0},
]


@pytest.mark.parametrize("options", RIPS_OPTIONS, ids=str)
def test_rips(options: dict[str, Any]) -> None:
    weights = matrices(0)
    assert_clouds(measure(RipsProbe(**options), weights), weights, {}, **options)


@pytest.mark.parametrize("options", [o for o in RIPS_OPTIONS if "threshold" not in o], ids=str)
def test_gradient_rips(options: dict[str, Any]) -> None:
    weights, gradients = matrices(0), matrices(1)
    tensors = {name: torch.from_numpy(gradient) for name, gradient in gradients.items()}
    found = measure(GradientRipsProbe(**options), weights, gradients=lambda: tensors)
    assert_clouds(found, gradients, {"gradient_norm": None}, **options)
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
    norms[NETWORK] = math.hypot(*norms.values())
    assert {name: m.statistics["gradient_norm"] for name, m in found.items()} == pytest.approx(norms, rel=1e-13)


def test_gradients_are_taken_once() -> None:
    calls = []

    def gradients() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {name: torch.from_numpy(gradient) for name, gradient in matrices(1).items()}

    measure(GradientRipsProbe(), matrices(0), gradients=gradients)
    assert len(calls) == 1


def test_without_gradients_there_is_nothing_to_measure() -> None:
    with pytest.raises(ToposcopeError, match=r"\Agradient_rips: .*only runs that this study trained"):
        measure(GradientRipsProbe(), matrices(0))


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


def test_a_zero_layer_under_the_scale_of_the_network() -> None:
    weights = matrices(0) | {"a": np.zeros((4, 5))}
    found = measure(NeuralPersistenceProbe(scale="network"), weights)
    assert [layer for layer, m in found.items() if m.flag] == ["a"]
    assert set(found["a"].statistics.values()) == {0.0}


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
