"""What is known of each run at a fraction of its training, in blocks of columns: losses, schedule, norms, topology."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.between_runs.population import FINAL_LOSSES, GAP, Losses, RunPopulation
from toposcope.analysis.trajectory import Trajectory
from toposcope.probes.feature import NETWORK, TOPOLOGY, Feature
from toposcope.probes.probe import NOISE
from toposcope.typing import Indices, Matrix, Steps, Vector

FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
TOLERANCE = 1e-9
# Chosen on made-up populations (docs/methods/between-runs.md)
MIN_NEARNESS = 0.8  # a run takes part if its latest checkpoint is at this share of the fraction, or later
MIN_KNOWN_SHARE = 0.9  # share of the runs in which a column is known; elsewhere the mean takes its place
MIN_SLOPE_ROWS = 3  # logged losses that a slope takes
MIN_MEAN_ROWS, MEAN_SHARE = 10, 0.1  # rows of the training loss whose mean is its level: the last tenth
NEXT_SHARE = 0.1  # of all steps, in which divergence is looked for
SPIKE_RISE, SPIKE_ROWS = 0.1, 10  # relative rise of the mean of so many logged losses
MAX_SPREADS = 5.0  # robust standard deviations from the median beyond which targets are clipped in fitting
LOSS, SCHEDULE, PLAIN = "loss", "schedule", "norms and spectra"
LEVELS = "levels"  # the columns of the losses whose products with the schedule count too
CHAIN = (LOSS, SCHEDULE, PLAIN)  # each model has the columns of the one before it and these
PLACEBOS = {"random_projections": "random projections", "placebo_twin": "placebo twin"}
"""Blocks of columns that topology has to beat, by their probe."""
_DIMENSION = re.compile(r"H\d+(?=\.)")


@dataclass(frozen=True, eq=False)
class FractionColumns:
    """Columns of the runs that have a checkpoint at a fraction."""

    fraction: float  # nothing after this share of a run's steps was looked at
    places: Indices  # shape (n,); of the runs in the population
    at: Indices  # shape (n,); place of the checkpoint among those of the run
    blocks: dict[str, Matrix]  # shape (n, p); `LEVELS`, those of `CHAIN`, and of `PLACEBOS` where measured
    families: dict[str, Matrix]  # shape (n, p); topology, by probe and dimension

    def of_runs(self, chosen: Indices) -> "FractionColumns":
        """Return the same columns of some of the runs."""
        blocks, families = ({name: b[chosen] for name, b in of.items()} for of in (self.blocks, self.families))
        return FractionColumns(self.fraction, self.places[chosen], self.at[chosen], blocks, families)


def fraction_columns(population: RunPopulation, fraction: float) -> FractionColumns | None:
    """Return the columns at a fraction; None if no run has topology there."""
    members = [
        (i, at)
        for i, (t, last) in enumerate(zip(population.runs, population.last_steps, strict=True))
        if (at := _checkpoint(t, fraction * last)) is not None
        and not population.diverged_at[i] <= t.steps[at]
        and any(f.kind == TOPOLOGY and np.isfinite(values[at]) for f, values in t.features.items())
    ]
    if not members:
        return None
    places, at = np.array(members, dtype=np.int64).T
    runs = [population.runs[i] for i in places]
    found: dict[str, list[Vector]] = {LOSS: [], PLAIN: []}
    for feature, series in _series(runs):
        found.setdefault(_block_of(feature), []).extend(_level_and_change(series, at))
    targets = [
        _level_and_change([t.targets.get(name) for t in runs], at, second=True)
        for name in FINAL_LOSSES
        if name != "loss"
    ]
    targets.append(_level_and_change([population.losses[i].others for i in places], at, second=True))
    shapes = np.array([_shape(population.losses[i], int(t.steps[a])) for i, t, a in zip(places, runs, at, strict=True)])
    found[LOSS] = [*(column for columns in targets for column in columns), *shapes.T, *found[LOSS]]
    found[LEVELS] = [columns[0] for columns in targets] + [shapes[:, 0], shapes[:, 1]]
    found[SCHEDULE] = list(_schedule(population, places, at))
    blocks = {name: _usable(columns, len(places)) for name, columns in found.items()}
    named = (LEVELS, *CHAIN, *PLACEBOS.values())
    families = {name: block for name, block in blocks.items() if name not in named and block.shape[1]}
    return FractionColumns(fraction, places, at, {name: blocks[name] for name in named if name in blocks}, families)


def family_of(feature: Feature) -> str:
    """Return the family of a topological feature: its probe, and the dimension of the homology where it has one."""
    dimension = _DIMENSION.match(feature.statistic)
    return f"{feature.label} {dimension[0]}" if dimension else feature.label


def _block_of(feature: Feature) -> str:
    if feature.probe in PLACEBOS:
        return PLACEBOS[feature.probe]
    if feature.kind == TOPOLOGY:
        return family_of(feature)
    return LOSS if feature.kind == "loss" else PLAIN


def _checkpoint(t: Trajectory, end: float) -> int | None:
    """Return the place of the latest checkpoint up to a step, if it is near it."""
    place = int(np.searchsorted(t.steps, end * (1 + TOLERANCE), side="right")) - 1
    return place if place >= 0 and t.steps[place] > 0 and t.steps[place] >= MIN_NEARNESS * end else None


def _series(runs: Sequence[Trajectory]) -> Iterator[tuple[Feature, list[Vector | None]]]:
    """Yield the features of the network and their scale-free twins, each with its values in every run."""
    for tables in ([t.features for t in runs], [t.twins.get(NETWORK, {}) for t in runs]):
        for feature in dict.fromkeys(feature for table in tables for feature in table):
            if not feature.statistic.endswith(NOISE):
                yield feature, [table.get(feature) for table in tables]


def _level_and_change(series: Sequence[Vector | None], at: Indices, *, second: bool = False) -> list[Vector]:
    """Return values and their change, with `second` also its change; of logarithms where all are positive."""
    values = np.full((3, len(series)), np.nan)
    for i, (of_run, place) in enumerate(zip(series, at, strict=True)):
        if of_run is not None:
            for back in range(min(place, 2) + 1):
                values[back, i] = of_run[place - back]
    values = _logarithm(values)
    change, before = values[0] - values[1], values[1] - values[2]
    return [values[0], change, change - before] if second else [values[0], change]


def _shape(losses: Losses, step: int) -> Vector:
    """Return of the training loss up to a step: level, slope, curvature and scatter of its logarithm."""
    seen = (losses.steps <= step) & np.isfinite(losses.training) & (losses.training > 0)
    x, y = np.log(losses.steps[seen]), np.log(losses.training[seen])
    if len(y) < MIN_SLOPE_ROWS:
        return np.full(4, np.nan)
    late, middle = x > np.log(step / 2), (x > np.log(step / 4)) & (x <= np.log(step / 2))
    level = y[-max(MIN_MEAN_ROWS, int(MEAN_SHARE * len(y))) :].mean()
    slope, scatter = _line(x[late], y[late])
    return np.array([level, slope, slope - _line(x[middle], y[middle])[0], scatter])


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Return the slope of a line and the scatter about it; NaN for fewer than three values."""
    if len(x) < MIN_SLOPE_ROWS:
        return np.nan, np.nan
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    return slope, float((y - slope * x).std())


def _schedule(population: RunPopulation, places: Indices, at: Indices) -> Iterator[Vector]:
    """Yield what is known of the training at its start, and the learning rate of the moment."""
    for values in population.declared.values():
        yield _logarithm(values[places])
    rates = np.full((3, len(places)), np.nan)
    for i, (place, a) in enumerate(zip(places, at, strict=True)):
        t = population.runs[place]
        known = [t.covariates.get(name) for name in ("learning_rate", "cumulative_learning_rate")]
        rates[:2, i] = [np.nan if values is None else values[a] for values in known]
        rates[2, i] = population.rates_left[place][a]
    yield _logarithm(rates[0])
    yield _logarithm(rates[1])
    yield rates[2]


def _logarithm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logarithms where all known values are positive, else the values."""
    known = np.isfinite(values)
    if not known.any() or not (values[known] > 0).all():
        return values
    return np.log(values, where=known, out=np.full_like(values, np.nan))


def _usable(columns: Iterable[Vector], n: int) -> Matrix:
    """Return the columns that are known in most runs and differ between runs."""
    table = np.array(list(columns)).reshape(-1, n).T
    known = np.isfinite(table)
    often = known.mean(axis=0) >= MIN_KNOWN_SHARE
    low = np.where(known, table, np.inf).min(axis=0, initial=np.inf)
    high = np.where(known, table, -np.inf).max(axis=0, initial=-np.inf)
    return np.asarray(table[:, often & (high > low)])


Kind = Literal["loss", "number", "event"]
DIVERGENCE = "divergence or spike"
NORMAL = 1.4826  # standard deviation of a normal variable over its median absolute deviation


@dataclass(frozen=True, eq=False)
class Problem:
    """What is predicted at one fraction."""

    target: str
    kind: Kind  # logarithms of losses are fitted. Errors are absolute ones, and of an event squared ones
    values: Vector  # shape (n,); of the runs whose target is known; 0 or 1 of an event
    columns: FractionColumns  # of the same runs
    groups: dict[str, Indices]  # shape (n,)

    def fitted(self) -> Vector:
        """Return what models are fitted to."""
        return np.log(self.values) if self.kind == "loss" else self.values

    def errors(self, predicted: Matrix, fitted: Matrix) -> Matrix:
        """Return the errors of predictions of what models are fitted to."""
        if self.kind == "loss":
            return np.asarray(np.abs(np.exp(predicted) - np.exp(fitted)))
        return np.asarray(np.abs(predicted - fitted) if self.kind == "number" else (predicted - fitted) ** 2)

    def limits(self, train: Indices) -> tuple[float, float]:
        """Return the range to which the targets of some runs are clipped, so that a few do not decide a fit."""
        values = self.fitted()[train]
        centre = np.median(values)
        spread = NORMAL * np.median(np.abs(values - centre))
        if self.kind == "event" or not spread > 0:
            return -np.inf, np.inf
        return float(centre - MAX_SPREADS * spread), float(centre + MAX_SPREADS * spread)


def problems(population: RunPopulation, columns: FractionColumns) -> list[Problem]:
    """Return the targets that differ between the runs at a fraction."""
    places = columns.places
    targets: dict[str, Vector] = {name: values[places] for name, values in population.targets.items()}
    targets[DIVERGENCE] = _diverges(population, columns)
    made = []
    for target, values in targets.items():
        known = np.isfinite(values)
        if known.any():
            chosen = np.flatnonzero(known)
            kind: Kind = "event" if target == DIVERGENCE else "number" if target == GAP else "loss"
            kind = "number" if kind == "loss" and not (values[known] > 0).all() else kind
            groups = {name: g[places[chosen]] for name, g in population.groups.items()}
            made.append(Problem(target, kind, values[chosen], columns.of_runs(chosen), groups))
    return made


def _diverges(population: RunPopulation, columns: FractionColumns) -> Vector:
    """Return 1 for runs that diverge or spike within the next tenth of training, else 0; NaN if it is not known."""
    events = np.full(len(columns.places), np.nan)
    for i, (place, at) in enumerate(zip(columns.places, columns.at, strict=True)):
        step = int(population.runs[place].steps[at])
        end = step + NEXT_SHARE * population.last_steps[place]
        losses = population.losses[place]
        if step < population.diverged_at[place] <= end:
            events[i] = 1.0
        else:
            events[i] = spikes(losses.steps, losses.training, step, end)
    return events


def spikes(steps: Steps, losses: Vector, step: float, end: float) -> float:
    """Return whether the training loss rises by a tenth after a step, up to another: 1, 0, or NaN if it is not known.

    The mean of any ten consecutive logged losses after the step is compared with that of the last ten up to it; with
    fewer than ten rows on either side nothing is known. A loss that is not finite counts as a rise.
    """
    before, after = losses[steps <= step][-SPIKE_ROWS:], losses[(steps > step) & (steps <= end)]
    if len(before) < SPIKE_ROWS or len(after) < SPIKE_ROWS or not np.isfinite(before).all():
        return np.nan
    if not np.isfinite(after).all():
        return 1.0
    means = np.convolve(after, np.full(SPIKE_ROWS, 1 / SPIKE_ROWS), mode="valid")
    return float(means.max() > (1 + SPIKE_RISE) * before.mean())
