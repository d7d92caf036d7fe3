"""Whether change points of topology coincide with those of the loss, or lead them (docs/methods/phases.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import adjusted
from toposcope.analysis.association_verdict import MIN_POWER
from toposcope.analysis.change_points import LEVEL, MAX_POINTS, MIN_PIECE_LENGTH, find_breaks
from toposcope.analysis.efficiency import NP_MEAN, PER_STEP, PER_TOKEN, efficiency
from toposcope.analysis.trajectory import Features, SeriesByName, Trajectory
from toposcope.probes.feature import NETWORK, TOPOLOGY, Feature
from toposcope.progress import Progress, silent
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Indices, Vector

COINCIDE, LEAD = "coincide", "lead"
LOSS, RATE = "loss", "learning_rate"
TARGETS = (LOSS, PER_STEP, PER_TOKEN, RATE)
YES, NO, UNKNOWN = "yes", "no", "cannot be told"
FOLLOWED = (
    NP_MEAN,
    *(Feature("rips", "", f"H{k}.total", TOPOLOGY) for k in (0, 1)),
    *(Feature("distances", "", f"H{k}.wasserstein_2", TOPOLOGY) for k in (0, 1)),
)
"""Of distances from the checkpoint before, the change points of their sum count: a peak is a jump of the path."""
GROUPS = (NETWORK, "attention", "mlp")
LAYER, LAYER_FEATURES = "layer", FOLLOWED[:1]
SCHEMA = {
    **dict.fromkeys(("group", "feature", "target", "relation"), pl.String),
    **dict.fromkeys(("n_runs", "n_checkpoints", "changes", "target_changes"), pl.Int64),
    **dict.fromkeys(("share", "expected", "p", "power"), pl.Float64),
}
MAX_RUNS = 12
"""Of more runs, only the network is followed."""
DRAWS, PLANTED_DRAWS = 1999, 400
MAX_LAG = 1  # checkpoints within which two changes coincide; the place of a change of slope is no more certain
MAX_LEAD = 0.1  # of the checkpoints of a run, or 3
PLANTED = 0.5  # share of the changes that are planted where the power is measured


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of one series on an axis of n checkpoints, weighted so that those of a smooth trend count little."""

    n: int
    places: Indices
    weights: Vector  # -ln p
    twin_places: Indices  # the largest change of each twin with the same trend
    twin_weights: Vector

    @classmethod
    def of(cls, steps: Indices, values: Vector, seed: int) -> Self | None:
        """Find the change points of the known values; None if there are none, or none of them has weight."""
        known = np.flatnonzero(np.isfinite(values))
        breaks = find_breaks(steps[known], values[known], seed)
        if breaks is None or not (breaks.p < 1).any():
            return None
        n = min(len(values), MAX_POINTS)
        place = known[breaks.first] * n // len(values)
        weights = (-np.log(p) for p in (breaks.p, breaks.twin_p))
        return cls(n, place[breaks.places], next(weights), place[breaks.twin_places], next(weights))

    @property
    def unexplained(self) -> int:
        """The number of change points that a smooth trend does not explain."""
        return int((self.weights > -np.log(LEVEL)).sum())


Pair = tuple[Changes, Changes]
"""The changes of topology and of the other quantity in one run."""


@dataclass(frozen=True)
class Alignment:
    """How the changes of two quantities lie in the runs of a study."""

    share: float  # of the changes of topology that lie at, or before, one of the other quantity; mean of the runs
    expected: float  # the same where blocks of checkpoints are moved
    p: float
    power: float  # how often half of the changes, planted there, would be found at the level


def align(pairs: Sequence[Pair], relation: str, level: float, seed: int) -> Alignment:
    """Test whether changes of topology coincide with those of another quantity, or lead them.

    p is the larger of two. Against *moves*: blocks of √n checkpoints are permuted and shifted circularly with the
    changes of topology in them, in all runs alike, so that runs need not be independent of each other; each run has
    the same weight. Against *twins*: series with the same smooth trend and noise as topology, which have no changes.
    """
    rng = np.random.default_rng(seed)
    longest = max((a.n for a, _ in pairs), default=1)
    share = evidence = 0.0
    moved, twins = np.zeros((2, DRAWS))
    planted = np.zeros((2, PLANTED_DRAWS))
    for a, b in pairs:
        near = _nearness(a.n, b, relation)
        total = a.weights.sum()
        own = float(a.weights @ near[a.places])
        share, evidence = share + own / total, evidence + own
        moved += a.weights @ near[_moved(a, longest)] / total
        drawn = rng.integers(0, len(a.twin_places), DRAWS)
        twins += a.twin_weights[drawn] * near[a.twin_places[drawn]]
        gains = a.weights @ near[_planted(a, b, relation, rng)]
        planted += np.array([gains / total, gains])
    found = [planted[i] > np.quantile(null, 1 - level, method="higher") for i, null in enumerate((moved, twins))]
    p = max(float((1 + (null >= own - 1e-9).sum()) / (1 + DRAWS)) for own, null in ((share, moved), (evidence, twins)))
    n = max(len(pairs), 1)
    return Alignment(float(share / n), float(moved.mean() / n), p, float(np.logical_and(*found).mean()))


def _nearness(n: int, other: Changes, relation: str) -> Vector:
    """Return, by checkpoint, the share of the other's changes that a change there coincides with, or leads."""
    lags = other.places - np.arange(n)[:, None]
    if relation == COINCIDE:
        near = np.clip(1 - np.abs(lags) / (MAX_LAG + 1), 0, None)
    else:
        near = ((lags > MAX_LAG) & (lags <= _longest(n))).astype(np.float64)
    return np.asarray(near @ other.weights / other.weights.sum())


def _longest(n: int) -> int:
    return max(MAX_LAG + 2, int(MAX_LEAD * n))


@lru_cache(maxsize=8)
def _moves(n: int) -> tuple[Vector, Vector, Indices]:
    """Draw where the blocks begin, by how much they are shifted, and their orders; all tests share the draws."""
    rng, count = np.random.default_rng(derive_seed(SEED, "moves", n)), max(2, int(np.sqrt(n)))
    order = rng.permuted(np.tile(np.arange(count), (DRAWS, 1)), axis=1)
    return rng.random(DRAWS), rng.random(DRAWS), order


def _moved(changes: Changes, longest: int) -> Indices:
    """Return places of the changes, shape (c, draws), moved on an axis that runs of up to so many checkpoints share."""
    begin, shift, order = _moves(longest)
    count, size = order.shape[1], changes.n - 2 * MIN_PIECE_LENGTH + 1  # of the possible places
    at = ((changes.places[:, None] - MIN_PIECE_LENGTH + 0.5) / size - begin) % 1 * count
    block = np.minimum(at.astype(np.int64), count - 1)
    to = ((order[np.arange(DRAWS), block] + at - block) / count + shift) % 1
    return np.asarray(np.minimum((to * size).astype(np.int64), size - 1) + MIN_PIECE_LENGTH)


def _planted(a: Changes, b: Changes, relation: str, rng: np.random.Generator) -> Indices:
    """Return places of as many changes, shape (c, draws): half at those of the other quantity, half anywhere."""
    shape = (len(a.places), PLANTED_DRAWS)
    lags = rng.integers(-MAX_LAG, MAX_LAG + 1, shape)
    if relation == LEAD:
        lags = rng.integers(MAX_LAG + 1, _longest(a.n) + 1, shape)
    there = rng.choice(b.places, shape, p=b.weights / b.weights.sum()) - lags
    anywhere = rng.integers(MIN_PIECE_LENGTH, a.n - MIN_PIECE_LENGTH + 1, shape)
    places = np.where(rng.random(shape) < PLANTED, there, anywhere)
    return np.clip(places, MIN_PIECE_LENGTH, a.n - MIN_PIECE_LENGTH)


def transition_table(trajectories: Sequence[Trajectory], progress: Progress = silent) -> pl.DataFrame:
    """Test whether transitions of topology coincide with those of loss, efficiency and learning rate, or lead them.

    Returns
    -------
    polars.DataFrame
        For each ``group`` (the network, attention, MLP, each layer; all but the network of up to 12 runs), ``feature``
        of topology, ``target`` and ``relation``: the runs and their checkpoints, ``changes`` and ``target_changes``
        that no smooth trend explains; ``share, expected, p, power`` of `Alignment`; ``p_adjusted`` by Holm over the
        network, over attention and MLP, and over the layers; and what is ``found``: yes, no, or that it cannot be told.
    """
    series: dict[tuple[str, str], dict[str, Changes]] = {}
    others: dict[str, dict[str, Changes]] = {}
    for done, trajectory in enumerate(trajectories, start=1):
        for name, values in _targets(trajectory).items():
            if (changes := _changes(trajectory, name, values)) is not None:
                others.setdefault(name, {})[trajectory.run] = changes
        for group, feature, values in _series(trajectory, len(trajectories) <= MAX_RUNS):
            if (changes := _changes(trajectory, str(feature), values, group)) is not None:
                series.setdefault((group, str(feature)), {})[trajectory.run] = changes
        progress("transitions", done, len(trajectories))
    questions = [(*of, target, relation) for of in series for target in others for relation in (COINCIDE, LEAD)]
    levels = [_level(group) for group, *_ in questions]
    rows = []
    for question, level in zip(questions, levels, strict=True):
        runs, target = series[question[:2]], others[question[2]]
        pairs = [(changes, target[run]) for run, changes in runs.items() if run in target]
        aligned = align(pairs, question[3], LEVEL / levels.count(level), derive_seed(SEED, "transitions", *question))
        counts = (sum(a.n for a, _ in pairs), *(sum(c.unexplained for c in of) for of in zip(*pairs, strict=True)))
        rows.append((*question, len(pairs), *(counts if pairs else (0, 0, 0)), *astuple(aligned)))
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").filter(pl.col("n_runs") > 0)
    return _decided(table)


def _level(group: str) -> str:
    """Return which rows are adjusted together."""
    return {NETWORK: NETWORK}.get(group, "groups" if group in GROUPS else LAYER)


def _decided(table: pl.DataFrame) -> pl.DataFrame:
    """Add adjusted p-values, and whether the relation is found; only a test of enough power says that it is not."""
    levels = np.array([_level(group) for group in table["group"]])
    p = np.full(len(table), np.nan)
    for level in set(levels.tolist()):
        p[levels == level] = adjusted(table["p"].to_numpy()[levels == level])
    enough = pl.when(pl.col("power") >= MIN_POWER).then(pl.lit(NO)).otherwise(pl.lit(UNKNOWN))
    found = pl.when(pl.col("p_adjusted") < LEVEL).then(pl.lit(YES)).otherwise(enough)
    return table.with_columns(p_adjusted=pl.Series(p, dtype=pl.Float64)).with_columns(found=found)


def _changes(trajectory: Trajectory, name: str, values: Vector, group: str = NETWORK) -> Changes | None:
    whose = () if group == NETWORK else (group,)  # the seed of the table of change points, so that both are one
    return Changes.of(trajectory.steps, values, derive_seed(SEED, "change points", trajectory.run, name, *whose))


def _targets(trajectory: Trajectory) -> SeriesByName:
    found = efficiency(trajectory)
    if trajectory.targets:
        found[LOSS] = next(iter(trajectory.targets.values()))
    if RATE in trajectory.covariates:
        found[RATE] = trajectory.covariates[RATE]
    return {name: found[name] for name in TARGETS if name in found}


def _series(trajectory: Trajectory, grouped: bool) -> Iterator[tuple[str, Feature, Vector]]:
    """Yield group, feature and values of what is followed; of distances their sum so far."""
    parts: list[tuple[str, Features]] = [(NETWORK, trajectory.features)]
    if grouped:
        parts += [(group, trajectory.groups[group]) for group in GROUPS if group in trajectory.groups]
        parts += trajectory.layers.items()
    for group, features in parts:
        for feature in FOLLOWED if group in GROUPS else LAYER_FEATURES:
            values = features.get(feature.of_group(group))
            if values is not None:
                known = np.isfinite(values)
                path = np.where(known, np.cumsum(np.where(known, values, 0.0)), np.nan)
                yield group, feature, path if feature.probe == "distances" else values
