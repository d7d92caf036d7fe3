"""The comparisons of kept states against homology's functions on the same arrays."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.probes import Failure, Measurement, ProbeInput, make_probes
from toposcope_experiments.similarity.probe import SimilarityProbe
from toposcope_experiments.similarity.similarity import linear_cka, procrustes, rtd

Points = NDArray[np.float32]
LAYERS = ["hidden.00", "hidden.01", "network"]


def points(seed: int, n: int = 40, d: int = 6) -> Points:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def states() -> dict[int, dict[str, Points]]:
    """Of four checkpoints; of those between the first and the previous one, the last hidden state alone."""
    found = {
        step: {layer: points(10 * step + i) for i, layer in enumerate(LAYERS) if step != 2 or layer == "network"}
        for step in (0, 2, 4, 8)
    }
    return found


def measure(probe: SimilarityProbe, found: dict[int, dict[str, Points]], **options: Any) -> dict[str, Any]:
    place = {"step": 8, "first_step": 0, "previous_step": 4} | options
    subject = ProbeInput([], frozenset(LAYERS), states=found, **place)
    return {result.layer: result for result in probe.measure(subject)}


def told(found: dict[str, Any], layer: str) -> dict[str, float]:
    assert isinstance(found[layer], Measurement), found[layer]
    statistics: dict[str, float] = found[layer].statistics
    return statistics


def by_hand(a: Points, b: Points, **batches: Any) -> dict[str, float]:
    first, second = a.astype(float), b.astype(float)
    divergence = rtd(first, second, **batches)
    found = {"cka": linear_cka(first, second), "procrustes": procrustes(first, second), "rtd": divergence.value}
    return found | ({"rtd.noise": divergence.spread} if divergence.n_batches > 1 else {})


def named(values: dict[str, float], end: str) -> dict[str, float]:
    return {name.replace(".noise", "") + end + (".noise" if "noise" in name else ""): v for name, v in values.items()}


@pytest.mark.parametrize("batches", [{"batch_size": 64, "n_batches": 5}, {"batch_size": 15, "n_batches": 4}], ids=str)
def test_every_entry_is_that_of_the_functions(batches: dict[str, int]) -> None:
    kept = states()
    found = measure(SimilarityProbe(**batches), kept)
    for layer in LAYERS:
        expected = named(by_hand(kept[0][layer], kept[8][layer], **batches), ".first")
        expected |= named(by_hand(kept[4][layer], kept[8][layer], **batches), ".previous")
        for other in LAYERS:
            if other != layer:
                first, second = sorted((layer, other))
                expected |= named(by_hand(kept[8][first], kept[8][second], **batches), f"@{other}")
        if layer == "network":
            for step in (0, 2, 4):
                expected |= named(by_hand(kept[step][layer], kept[8][layer], **batches), f"@step.{step}")
        assert told(found, layer) == pytest.approx(expected, rel=1e-12)
        assert found[layer].role == layer.partition(".")[0]


def test_the_first_checkpoint_has_no_earlier_one() -> None:
    found = measure(SimilarityProbe(), {0: states()[0]}, step=0, first_step=0, previous_step=None)
    assert not [name for name in told(found, "network") if ".first" in name or ".previous" in name or "step" in name]
    assert set(told(found, "network")) == {f"{n}@{o}" for n in ("cka", "procrustes", "rtd") for o in LAYERS[:2]}


def test_what_was_not_kept_before_is_absent_and_what_is_not_kept_now_is_told() -> None:
    kept = states()
    del kept[4]["hidden.01"], kept[8]["hidden.00"]
    found = measure(SimilarityProbe(), kept)
    assert "cka.previous" not in told(found, "hidden.01")
    assert "cka.first" in told(found, "hidden.01")
    assert isinstance(found["hidden.00"], Failure)
    assert "hidden.00" in found["hidden.00"].message


def test_a_single_point_is_compared_with_nothing() -> None:
    kept = states()
    kept[4]["network"] = np.full((40, 6), 0.1, np.float32)
    kept[0]["network"] = np.full((40, 6), 0.1, np.float32)
    kept[0]["network"][0] = 2  # nearly all are equal
    found = told(measure(SimilarityProbe(), kept), "network")
    assert not [name for name in found if name.endswith((".previous", ".first", "@step.0", "@step.4"))]
    assert "cka@step.2" in found


def test_other_points_are_refused() -> None:
    kept = states()
    kept[4]["network"] = points(1, n=39)
    found = measure(SimilarityProbe(), kept)
    assert isinstance(found["network"], Failure)
    assert "same text" in found["network"].message


def test_without_batches_there_is_no_divergence() -> None:
    found = told(measure(SimilarityProbe(n_batches=0), states()), "network")
    assert not [name for name in found if name.startswith("rtd")]
    assert "cka.first" in found


def test_nothing_is_compared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previous, first and steps are the same pair under several names, and so are layers either way round."""
    calls: list[int] = []

    def counted(*clouds: Any, **options: Any) -> Any:
        calls.append(1)
        return rtd(*clouds, **options)

    monkeypatch.setattr("toposcope_experiments.similarity.probe.rtd", counted)
    measure(SimilarityProbe(), states())
    assert len(calls) == 3 + 3 + 2 * 2  # pairs of layers; the network's checkpoints; two of the other layers


def test_it_needs_states_that_are_kept() -> None:
    for declared in ([], [{"name": "hidden_states"}], [{"name": "hidden_states", "keep": 2}]):
        with pytest.raises(ToposcopeError, match="keep = "):
            make_probes([*declared, {"name": "similarity"}])
    probes = make_probes([{"name": "hidden_states"}, {"name": "hidden_states", "keep": 50}, {"name": "similarity"}])
    assert probes[2].source(probes) is probes[1]
