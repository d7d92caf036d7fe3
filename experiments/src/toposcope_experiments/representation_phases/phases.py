"""Phases of what a model represents (Li et al. 2025): found in the spectra, looked for in the diagrams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import Trajectory
from toposcope.extend import NETWORK, PUBLISHED, STATES, Vector, change_points, derive_seed, joined
from toposcope_experiments.representation_phases.turns import MAX_TURNS, Turn, Turns, turning_points

SEED = 42
RANKS = ("rankme", "effective_rank")  # the first that is known stands for both
DECAYS = ("eigenspectrum_decay", "eigenspectrum_decay_alpha")
"""Of our probe and of the published study; falls where a rank rises."""
DIAGRAMS = ("H0.total", "H0.mean", "H0.entropy", "H1.total", "H1.count", "H1.entropy", "H1.max")
SCALE_FREE = ("H0.total", "H1.total")
PER_SCALE = " / scale"  # ending of a feature divided by the square root of the total variance
PLACEMENTS = 1000

_ORDINALS = ("first", "second", "third")
_EACH = range(1, MAX_TURNS + 1)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **{"run": pl.String, "feature": pl.String, "kind": pl.String, "n": pl.Int64, "n_turns": pl.Int64},
    "directions": pl.String,
    **{f"turn_{i}{bound}": pl.Int64 for i in _EACH for bound in ("", "_low", "_high")},
    **{f"p_{i}": pl.Float64 for i in _EACH},
    **{f"change_{i}": pl.Float64 for i in range(1, MAX_TURNS + 2)},
    "phases": pl.String,
    **{f"change_point_{i}": pl.Boolean for i in _EACH},
    **{"follows": pl.String, "chance": pl.Float64},
}


def representation_phases(found: Sequence[Trajectory]) -> pl.DataFrame:
    """Find where spectral measures of hidden states turn, name the phases between, and look for them in the diagrams.

    Li et al. (2025, arXiv:2509.23024) describe three phases of pretraining in RankMe and the decay of the eigenspectrum
    of last hidden states: *warm-up*, a collapse, in which the rank falls; *entropy-seeking*, in which it rises; and
    *compression-seeking*, in which it falls again.
    """
    rows = [row for trajectory in found for row in _of_run(trajectory)]
    return pl.DataFrame(rows, schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class _Cut:
    """A feature of a run at the checkpoints where it is known, and its turns."""

    run: str
    name: str
    steps: NDArray[np.int64]
    values: Vector
    turns: Turns | None

    @classmethod
    def of(cls, trajectory: Trajectory, name: str, values: Vector) -> "_Cut":
        known = np.isfinite(values)
        seed = derive_seed(SEED, "turns", trajectory.run, name)
        turns = turning_points(values[known], seed)
        return cls(trajectory.run, name, trajectory.steps[known], values[known], turns)

    def spans(self) -> list[tuple[int, int]]:
        """Return the intervals of the turns, in steps."""
        turns = self.turns.turns if self.turns else []
        return [(int(self.steps[turn.low]), int(self.steps[turn.high])) for turn in turns]

    def row(self, kind: str) -> dict[str, Any]:
        """Return what the table says of it alone."""
        row = {"run": self.run, "feature": self.name, "kind": kind, "n": len(self.steps), "phases": ""}
        if self.turns is None:
            return row
        row |= {"n_turns": len(self.turns.turns), "directions": self.turns.directions}
        row |= {f"p_{i}": p for i, p in enumerate(self.turns.p, start=1)}
        row |= {f"change_{i}": change for i, change in enumerate(_changes(self.turns.levels), start=1)}
        points = self._change_points() if self.turns.turns else []
        for i, turn in enumerate(self.turns.turns, start=1):
            row |= {f"turn_{i}": int(self.steps[turn.place])}
            row |= {f"turn_{i}_low": int(self.steps[turn.low]), f"turn_{i}_high": int(self.steps[turn.high])}
            row |= {f"change_point_{i}": any(low <= turn.place <= high for low, high in points)}
        return row

    def _change_points(self) -> list[tuple[int, int]]:
        order = np.arange(len(self.values))
        seed = derive_seed(SEED, "change points", self.run, self.name)
        return [(point.low, point.high) for point in change_points(order, self.values, seed)]


def _of_run(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    labels = dict.fromkeys(f.label for f in trajectory.features if f.probe in (PUBLISHED, STATES))
    for label in labels:
        yield from _of_label(trajectory, label)


def _of_label(trajectory: Trajectory, label: str) -> Iterator[dict[str, Any]]:
    features = {f.statistic: values for f, values in trajectory.features.items() if f.label == label}
    ranks = [name for name in RANKS if name in features][:1]
    decays = [name for name in DECAYS if name in features][:1]
    if not ranks + decays:
        return  # published features of weights
    reference = None
    for name in ranks + decays:
        cut = _Cut.of(trajectory, f"{label} {name}", features[name])
        reference = reference or cut
        yield {**cut.row("spectral"), "phases": _phases(cut.turns, falls=name in decays)}
    for name, values in _diagrams(trajectory, label, features):
        cut = _Cut.of(trajectory, name, values)
        yield {**cut.row("diagram"), **(_followed(reference, cut) if reference else {})}


def _diagrams(trajectory: Trajectory, label: str, features: dict[str, Vector]) -> Iterator[tuple[str, Vector]]:
    twins = {f.statistic: v for f, v in trajectory.twins.get(NETWORK, {}).items() if f.label == label}
    for name in DIAGRAMS:
        if name in features:
            yield f"{label} {name}", features[name]
    for name in SCALE_FREE:
        if name in twins:
            yield f"{label} {name}{PER_SCALE}", twins[name]


def _changes(levels: Vector) -> list[float | None]:
    """Return the change of each stretch as a share of where it begins; None where that is 0."""
    pairs = zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True)
    return [(end - begin) / abs(begin) if begin else None for begin, end in pairs]


def _phases(turns: Turns | None, *, falls: bool) -> str:
    """Name the stretches of a rank, or of what falls where it rises; one stretch alone has no name."""
    if turns is None or not turns.turns:
        return ""
    rises = [(d == "up") != falls for d in turns.directions.split()]
    names = ["entropy-seeking" if rise else "compression-seeking" for rise in rises]
    return ", ".join(["warm-up" if not rises[0] else names[0], *names[1:]])


def _followed(spectral: _Cut, diagram: _Cut) -> dict[str, Any]:
    """Say which turns of a spectral measure a diagram's statistic turns at too, and how easily that happens."""
    targets = spectral.spans()
    if not targets or diagram.turns is None:
        return {}
    met = [any(a <= high and low <= b for low, high in diagram.spans()) for a, b in targets]
    return {"follows": _which(met), "chance": _chance(targets, sum(met), diagram)}


def _which(met: list[bool]) -> str:
    if all(met) and len(met) > 1:
        return "both" if len(met) == 2 else "all"
    return joined([name for name, is_met in zip(_ORDINALS, met, strict=False) if is_met]) if any(met) else "none"


def _chance(targets: list[tuple[int, int]], n_met: int, diagram: _Cut) -> float:
    """Return the share of random placements of a diagram's turns, intervals as wide, that meet as many targets."""
    turns: list[Turn] = diagram.turns.turns if diagram.turns else []
    if not n_met:
        return 1.0
    rng = np.random.default_rng(derive_seed(SEED, "placements", diagram.run, diagram.name))
    last = len(diagram.steps) - 1
    # as many different checkpoints between the first and the last, in order
    places = 1 + np.sort(rng.random((PLACEMENTS, last - 1)).argsort(axis=1)[:, : len(turns)], axis=1)
    low = diagram.steps[np.maximum(places - [turn.place - turn.low for turn in turns], 0)]
    high = diagram.steps[np.minimum(places + [turn.high - turn.place for turn in turns], last)]
    met = np.sum([((low <= b) & (high >= a)).any(axis=1) for a, b in targets], axis=0)
    return float((met >= n_met).mean())
