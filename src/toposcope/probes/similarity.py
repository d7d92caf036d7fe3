"""How alike the representations of two layers, or of two checkpoints, are: of the same texts, point by point."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology import linear_cka, procrustes, rtd
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.hidden_states import HiddenStatesProbe
from toposcope.probes.probe import (
    HIDDEN,
    NOISE,
    Failure,
    Measurement,
    Probe,
    States,
    Subject,
    Value,
    guarded,
    stacked,
)

Points = NDArray[np.float64]
Place = tuple[int, str]
"""A step and a pseudo-layer."""

FEWEST = 3
"""Fewest points that can be compared."""
NEARLY_ALL = 0.9
"""Share of the distances; the divergence is in units of their quantile there."""


class SimilarityProbe(Probe, frozen=True, tag="similarity"):
    """``cka``, ``procrustes`` and ``rtd`` between hidden states that `hidden_states` kept (its option `keep`).

    Of each hidden state against itself at the checkpoint before and at the first: ``cka.previous``,
    ``procrustes.previous``, ``rtd.previous``, ``cka.first`` and so on. Of layers against layers, at one checkpoint:
    ``cka@hidden.03`` in the row of every other layer. Of the last hidden state against itself at every earlier
    checkpoint: ``cka@step.512``. The representation topology divergence also has ``rtd.previous.noise`` and so on, the
    standard deviation over its batches (ddof 1), where there are several.

    Against itself at the same checkpoint nothing is told: it would be 1, 0 and 0. Where nearly all points of one of two
    representations are equal, so that nine tenths of the distances are 0, there is nothing to compare, and that entry
    is absent.

    Attributes
    ----------
    batch_size, n_batches : int
        Of the divergence; see `toposcope.homology.rtd`. 0 batches leave it out.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "control"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"states"})

    batch_size: int = 64
    n_batches: int = 5

    def __post_init__(self) -> None:
        if self.batch_size < FEWEST:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least {FEWEST}")
        if self.n_batches < 0:
            raise ValueError(f"n_batches is {self.n_batches}; it must be at least 0")

    def source(self, probes: Sequence[Probe]) -> Probe:
        """Return the first `hidden_states` that keeps points."""
        for probe in probes:
            if isinstance(probe, HiddenStatesProbe) and probe.keep >= FEWEST:
                return probe
        raise ToposcopeError(
            'probes: similarity compares points that hidden_states kept; declare name = "hidden_states" with keep = 500'
        )

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        assert subject.step is not None  # a study tells it
        here = subject.states.get(subject.step, {})
        compare = _Comparison(subject.states, self.batch_size, self.n_batches)
        for layer in sorted(subject.wanted):
            if layer in here:
                yield guarded(layer, lambda layer=layer: self._measure(layer, compare, subject))  # type: ignore[misc]
            else:
                yield Failure(layer, f"{layer}: hidden_states kept no points of it at this checkpoint")

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over layers."""
        return {name: np.mean(stacked(rows, name), axis=0) for name in rows[0]}

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``topology`` for the divergence, ``control`` for what it is compared with."""
        return "topology" if statistic.startswith("rtd") else cls.KIND

    def degree(self, statistic: str) -> int:
        """Return 0: nothing here depends on the scale."""
        return 0

    def _measure(self, layer: str, compare: "_Comparison", subject: Subject) -> Measurement:
        assert subject.step is not None
        statistics: dict[str, float] = {}
        for name, other in _others(layer, subject).items():
            for measure, value in compare((subject.step, layer), other).items():
                base = measure.removesuffix(NOISE)
                statistics[f"{base}{name}{measure.removeprefix(base)}"] = value
        return Measurement(layer, NETWORK if layer == NETWORK else HIDDEN, statistics)


def _others(layer: str, subject: Subject) -> dict[str, Place]:
    """Return what a layer is compared with, by the end of the statistics' names."""
    assert subject.step is not None
    found = {f"@{other}": (subject.step, other) for other in sorted(subject.states[subject.step]) if other != layer}
    earlier = [step for step in sorted(subject.states) if step != subject.step and layer in subject.states[step]]
    for name, step in (("previous", subject.previous_step), ("first", subject.first_step)):
        if step is not None and step in earlier:
            found[f".{name}"] = (step, layer)
    if layer == NETWORK:
        found |= {f"@step.{step}": (step, layer) for step in earlier}
    return found


class _Comparison:
    """Compares kept states; what was compared before, under another name or the other way round, is not again."""

    def __init__(self, states: Mapping[int, States], batch_size: int, n_batches: int) -> None:
        self._states, self._batch_size, self._n_batches = states, batch_size, n_batches
        self._known: dict[tuple[Place, Place], dict[str, float]] = {}

    def __call__(self, first: Place, second: Place) -> dict[str, float]:
        pair = (first, second) if first < second else (second, first)
        if pair not in self._known:
            self._known[pair] = self._compare(*(self._states[step][layer].astype(np.float64) for step, layer in pair))
        return self._known[pair]

    def _compare(self, first: Points, second: Points) -> dict[str, float]:
        if len(first) != len(second):
            raise ToposcopeError(f"{len(first)} and {len(second)} points: they are not of the same text")
        if len(first) < FEWEST or max(map(_share_of_zeros, (first, second))) >= NEARLY_ALL:
            return {}
        found = {"cka": linear_cka(first, second), "procrustes": procrustes(first, second)}
        if self._n_batches:
            divergence = rtd(first, second, batch_size=self._batch_size, n_batches=self._n_batches)
            found["rtd"] = divergence.value
            if divergence.n_batches > 1:
                found[f"rtd{NOISE}"] = divergence.spread
        return found


def _share_of_zeros(points: Points) -> float:
    """Return the share of the distances between points that are 0, each point's to itself among them."""
    _, counts = np.unique(points, axis=0, return_counts=True)
    return float(((counts / len(points)) ** 2).sum())
