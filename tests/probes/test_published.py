"""The released checkpoints of the published study give the features it released."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from toposcope.checkpoints import Checkpoint, series
from toposcope.probes import Measurement, Probe, ProbeInput
from toposcope.probes.feature import NETWORK
from toposcope.probes.neural_persistence import NeuralPersistenceProbe
from toposcope.probes.probe import POOLED
from toposcope.probes.rips import RipsProbe

pytestmark = pytest.mark.reference

CAP = 2.0
"""The study's filtration cap; deaths beyond it are missing from its totals."""


@cache
def steps_of(study: Path, model: str) -> list[tuple[Checkpoint, dict[str, Any]]]:
    """Every checkpoint with what was published of it."""
    features = json.loads((study / "features.json").read_bytes())[model]
    checkpoints = series(study / "checkpoints" / model)
    assert checkpoints.steps == [row["step"] for row in features] == list(range(0, 5001, 100))
    return list(zip(checkpoints, features, strict=True))


def measure(probe: Probe, checkpoint: Checkpoint) -> dict[str, dict[str, float]]:
    found = {}
    for result in probe.measure(ProbeInput.of(checkpoint)):
        assert isinstance(result, Measurement), result
        found[result.layer] = result.statistics
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("model", "n_layers"), [("tiny-3k", 5), ("med-21k", 9)])
def test_neural_persistence(model: str, n_layers: int, published_study: Path) -> None:
    for checkpoint, published in steps_of(published_study, model):
        found = measure(NeuralPersistenceProbe(), checkpoint)
        network = found.pop(NETWORK)
        assert len(found) == published["n_analyzed_layers"] == n_layers
        expected = {
            "np_mean": published["neural_persistence_mean"],
            "np_mean_std": published["neural_persistence_std"],
            "np_mean_min": published["neural_persistence_min"],
            "np_mean_max": published["neural_persistence_max"],
        }
        assert {name: network[name] for name in expected} == pytest.approx(expected, rel=0, abs=1e-6)
        # The study took the layers in the order of their names.
        layers = [found[name]["np_mean"] for name in sorted(found)]
        assert layers == pytest.approx([published[f"layer_{k}_np"] for k in range(n_layers)], rel=0, abs=1e-6)


def test_totals_of_the_pooled_cloud(published_study: Path) -> None:
    """All 200 neurons of the smallest model: nothing was subsampled, so every digit can be compared."""
    gains, truncated = [], []
    for checkpoint, published in steps_of(published_study, "tiny-3k"):
        (capped,) = measure(RipsProbe(pooled=True, threshold=CAP), checkpoint).values()
        (whole,) = measure(RipsProbe(pooled=True), checkpoint).values()
        for k in (0, 1):
            assert capped[f"H{k}.total"] == pytest.approx(published[f"h{k}_total_persistence"], rel=1e-6, abs=0)
            assert capped[f"H{k}.max"] == pytest.approx(published[f"h{k}_max_persistence"], rel=1e-6, abs=0)
        assert capped["H0.count"] == published["h0_num_features"] == 199
        # Connected components all die before the cap. A loop that does not is counted, and missing from the total.
        assert capped["H0.n_truncated"] == whole["H0.n_truncated"] == whole["H1.n_truncated"] == 0
        assert capped["H0.total"] == whole["H0.total"]
        assert whole["H1.count"] == capped["H1.count"] + capped["H1.n_truncated"]
        gains.append(whole["H1.total"] / capped["H1.total"] - 1)
        truncated.append(capped["H1.n_truncated"])
    # One loop at each of the last 23 steps: what the cap hid grows to 17% of the total.
    assert truncated == [0] * 28 + [1] * 23
    assert [gain > 0 for gain in gains] == [n > 0 for n in truncated]
    assert max(gains) == pytest.approx(0.1726, abs=5e-5)


def test_the_published_choices_as_options(published_study: Path) -> None:
    """Of the smallest model, whose 200 neurons are as many as the study took, there is nothing to draw."""
    probe = RipsProbe(pooled=True, threshold=CAP, max_points=200, sample="random", draws=3)
    for checkpoint, published in steps_of(published_study, "tiny-3k"):
        (found,) = measure(probe, checkpoint).values()
        for k in (0, 1):
            assert found[f"H{k}.total"] == pytest.approx(published[f"h{k}_total_persistence"], rel=1e-6, abs=0)
            assert found[f"H{k}.total.noise"] == found[f"H{k}.cover_radius"] == 0


@pytest.mark.slow
def test_random_rows_of_a_larger_model(published_study: Path) -> None:
    """The study's own draws were not seeded: its totals lie among those of other draws, and the exact ones do not."""
    probe = RipsProbe(pooled=True, threshold=CAP, max_points=200, sample="random", draws=20, max_dimension=0)
    deviations = []
    for checkpoint, published in steps_of(published_study, "med-21k")[::10]:
        found = measure(probe, checkpoint)[POOLED]
        assert found["H0.count"] == 199
        assert found["H0.cover_radius"] > 0
        deviations.append((published["h0_total_persistence"] - found["H0.total"]) / found["H0.total.noise"])
        exact = measure(RipsProbe(pooled=True, max_dimension=0), checkpoint)[POOLED]
        assert exact["H0.total"] > found["H0.total"] + 20 * found["H0.total.noise"]
    # Differences of two independent draws: standard deviation sqrt(2).
    assert abs(sum(deviations)) / len(deviations) < 1.5
    assert all(abs(deviation) < 5 for deviation in deviations)


def test_the_cloud_of_a_larger_model_is_whole(published_study: Path) -> None:
    """The study kept 200 rows of larger models; here all count, so its totals are not matched but bounded."""
    checkpoint, published = steps_of(published_study, "med-21k")[-1]
    found = measure(RipsProbe(pooled=True, max_dimension=0), checkpoint)[POOLED]
    rows = sum(layer.shape[0] for layer in checkpoint.analysed())
    assert found["H0.count"] + found["H0.n_zero"] == rows - 1 > published["h0_num_features"] == 199
    assert found["H0.total"] > published["h0_total_persistence"]
