"""Similarity of the representations of two layers or two checkpoints on the same texts, point by point."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.extend import (
    NETWORK,
    NOISE,
    STATES,
    Failure,
    Kind,
    Matrix,
    Measurement,
    Probe,
    ProbeInput,
    ToposcopeError,
    Value,
    guarded,
    stacked,
)
from toposcope_experiments.similarity.similarity import linear_cka, procrustes, rtd

StepLayer = tuple[int, str]  # a step and a pseudo-layer

MIN_POINTS = 3  # fewest points that can be compared
MAX_ZERO_SHARE = 0.9  # share of zero distances from which the divergence, in units of their 0.9 quantile, is undefined


class SimilarityProbe(Probe, frozen=True, tag="similarity"):
    """``cka``, ``procrustes`` and ``rtd`` between points stored by `hidden_states` (its option `keep`)."""

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "control"
    SCALE_FREE: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"states"})
    LEAST: ClassVar[Mapping[str, int]] = {"batch_size": MIN_POINTS, "n_batches": 0}

    batch_size: int = 64  # of the divergence; see `toposcope.homology.rtd`
    n_batches: int = 5  # of the divergence; with 0 there is none

    def source(self, probes: Sequence[Probe]) -> Probe:
        """Return the first `hidden_states` that stores points."""
        for probe in probes:
            if probe.name() == STATES and getattr(probe, "keep", 0) >= MIN_POINTS:
                return probe
        raise ToposcopeError(
            'probes: similarity compares points stored by hidden_states; declare name = "hidden_states" with keep = 500'
        )

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        assert subject.step is not None  # a study sets it
        here = subject.states.get(subject.step, {})
        compare = _Comparison(subject.states, self.batch_size, self.n_batches)
        for layer in sorted(subject.wanted):
            if layer in here:
                yield guarded(layer, lambda layer=layer: self._measure(layer, compare, subject))  # type: ignore[misc]
            else:
                yield Failure(layer, f"{layer}: hidden_states stored no points of it at this checkpoint")

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over layers."""
        return {name: np.mean(stacked(rows, name), axis=0) for name in rows[0]}

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``topology`` for the divergence, ``control`` for the rest."""
        return "topology" if statistic.startswith("rtd") else cls.KIND

    def _measure(self, layer: str, compare: "_Comparison", subject: ProbeInput) -> Measurement:
        assert subject.step is not None
        statistics: dict[str, float] = {}
        for name, other in _others(layer, subject).items():
            for measure, value in compare((subject.step, layer), other).items():
                base = measure.removesuffix(NOISE)
                statistics[f"{base}{name}{measure.removeprefix(base)}"] = value
        return Measurement(layer, NETWORK if layer == NETWORK else "hidden", statistics)


def _others(layer: str, subject: ProbeInput) -> dict[str, StepLayer]:
    """Return the states a layer is compared with, by the suffix of the statistics' names."""
    assert subject.step is not None
    others = {f"@{other}": (subject.step, other) for other in sorted(subject.states[subject.step]) if other != layer}
    earlier = [step for step in sorted(subject.states) if step != subject.step and layer in subject.states[step]]
    for name, step in (("previous", subject.previous_step), ("first", subject.first_step)):
        if step is not None and step in earlier:
            others[f".{name}"] = (step, layer)
    if layer == NETWORK:
        others |= {f"@step.{step}": (step, layer) for step in earlier}
    return others


class _Comparison:
    """Compares stored states, each pair once."""

    def __init__(self, states: Mapping[int, Mapping[str, Any]], batch_size: int, n_batches: int) -> None:
        self._states, self._batch_size, self._n_batches = states, batch_size, n_batches
        self._results: dict[tuple[StepLayer, StepLayer], dict[str, float]] = {}

    def __call__(self, first: StepLayer, second: StepLayer) -> dict[str, float]:
        pair = (first, second) if first < second else (second, first)
        if pair not in self._results:
            self._results[pair] = self._compare(*(self._states[step][layer].astype(np.float64) for step, layer in pair))
        return self._results[pair]

    def _compare(self, first: Matrix, second: Matrix) -> dict[str, float]:
        if len(first) != len(second):
            raise ToposcopeError(
                f"{len(first)} and {len(second)} points, not of the same text; measure hidden_states again"
            )
        if len(first) < MIN_POINTS or max(map(_share_of_zeros, (first, second))) >= MAX_ZERO_SHARE:
            return {}
        statistics = {"cka": linear_cka(first, second), "procrustes": procrustes(first, second)}
        if self._n_batches:
            divergence = rtd(first, second, batch_size=self._batch_size, n_batches=self._n_batches)
            statistics["rtd"] = divergence.value
            if divergence.n_batches > 1:
                statistics[f"rtd{NOISE}"] = divergence.spread
        return statistics


def _share_of_zeros(points: Matrix) -> float:
    """Return the share of zero distances between points, including those of each point to itself."""
    _, counts = np.unique(points, axis=0, return_counts=True)
    return float(((counts / len(points)) ** 2).sum())
