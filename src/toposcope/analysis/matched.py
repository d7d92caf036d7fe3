"""Features of runs of different size at equal step, tokens and loss (docs/methods/between-runs.md)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import tuning
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.permutations import MAX_ENUMERATED_ORDERS, RELATIVE_TOLERANCE, drawn_orders, orders
from toposcope.analysis.ranks import ranks
from toposcope.analysis.trajectory import Trajectory
from toposcope.probes import Feature
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

MAX_LEVELS = 12
MIN_SIZES = 3  # fewer sizes have only two orders, so that no correlation with size means anything

_PLACE: dict[str, type[pl.DataType]] = dict.fromkeys(("feature", "kind", "by"), pl.String)
MATCHED = _PLACE | {"level": pl.Float64, "run": pl.String, "n_parameters": pl.Int64, "value": pl.Float64}
COLLAPSE = _PLACE | dict.fromkeys(("n_runs", "n_levels"), pl.Int64)
COLLAPSE |= dict.fromkeys(("low", "high", "spread", "rho_size", "p_size", "p_least"), pl.Float64)


class _Matching(NamedTuple):
    """The levels at which runs are matched, the axis of each run, and the function that reads values at the levels."""

    by: str
    levels: Vector
    runs: list[Trajectory]
    axes: list[Vector]
    read: Callable[[Vector, Vector, Vector], Vector]


def matched_table(trajectories: Sequence[Trajectory], sizes: Mapping[str, int]) -> pl.DataFrame:
    """Read every feature of a network at the same levels of step, tokens and loss in all runs.

    Up to 12 levels, no more than any run has checkpoints there but at least the two ends, divide what is common to all
    runs of known size with at least 5 checkpoints: evenly in the logarithm of step and tokens, from the first
    checkpoint after the start, or in the loss itself. Between checkpoints values are interpolated linearly in
    log(1 + step) or log(1 + tokens). At equal loss the value is that where the loss, a broken line through the
    checkpoints, first falls to the level. The loss is the first target of most runs.

    Parameters
    ----------
    trajectories : sequence of Trajectory
    sizes : mapping of str to int
        Parameters by run; a run that is not in it is left out.

    Returns
    -------
    polars.DataFrame
        ``feature, kind, by`` ("step", "tokens" or "loss"), ``level`` (steps, tokens or nats), ``run, n_parameters,
        value``. NaN where the feature is not known at both checkpoints around the level; no gap is bridged, nothing
        extrapolated. No rows without two runs of different size, or where their ranges have nothing in common.
    """
    sized = [t for t in trajectories if t.run in sizes]
    by_step = _by_progress("step", [(t, t.steps.astype(np.float64)) for t in sized])
    matchings = [by_step, _by_progress("tokens", [(t, t.tokens) for t in sized]), _by_loss(sized)]
    matchings = [m for m in matchings if len(m.levels) and len({sizes[t.run] for t in m.runs}) >= 2]
    rows = [
        (name, feature.kind, m.by, level, run.run, sizes[run.run], value)
        for feature, name in {feature: str(feature) for t in sized for feature in t.features}.items()
        for m in matchings
        for run, axis in zip(m.runs, m.axes, strict=True)
        if feature in run.features
        for level, value in zip(m.levels.tolist(), _values(m, run, axis, feature).tolist(), strict=True)
    ]
    return pl.DataFrame(rows, schema=MATCHED, orient="row")


def collapse_table(matched: pl.DataFrame) -> pl.DataFrame:
    """Measure for every feature how far the sizes lie apart once runs are matched.

    Parameters
    ----------
    matched : polars.DataFrame
        From `matched`.

    Returns
    -------
    polars.DataFrame
        ``feature, kind, by``; ``n_runs`` and ``n_levels``, those where all of them are known, ``low`` to ``high``;
        ``spread``, the root mean square over levels of the standard deviation over runs, divided by the standard
        deviation of all matched values (ddof 1 both): 0 where the sizes coincide, about 1 where they have nothing in
        common, NaN for a constant and for one level. ``rho_size``, the median over levels of Spearman's correlation
        with the number of parameters; ``p_size``, the share of all orders of the runs (5,000 drawn ones of more than 8)
        with a median as large in absolute value, whole trajectories exchanged; ``p_least``, what it would be if all
        levels were in perfect order. NaN with fewer than 3 sizes.
    """
    groups = matched.group_by("feature", "kind", "by", maintain_order=True).agg("level", "run", "n_parameters", "value")
    rows = [row for place in groups.iter_rows() for row in _collapsed(*place)]
    return pl.DataFrame(rows, schema=COLLAPSE, orient="row")


def _values(matching: _Matching, run: Trajectory, axis: Vector, feature: Feature) -> Vector:
    """Read a feature at the levels; unknown values stay in, since the axis alone decides where the levels are."""
    values, known = run.features[feature], np.isfinite(axis)
    if (known & np.isfinite(values)).sum() < MIN_CHECKPOINTS:
        return np.full(len(matching.levels), np.nan)
    return matching.read(matching.levels, axis[known], np.where(np.isfinite(values), values, np.nan)[known])


def _by_progress(by: str, axes: Sequence[tuple[Trajectory, Vector]]) -> _Matching:
    """Match by the step or the tokens, without their start at 0, which has no logarithm."""
    usable = [(t, axis) for t, axis in axes if np.isfinite(axis).sum() >= MIN_CHECKPOINTS and np.nanmax(axis) > 0]
    begun = [axis[np.isfinite(axis) & (axis > 0)] for _, axis in usable]
    low, high = max((a.min() for a in begun), default=0.0), min((a.max() for a in begun), default=0.0)
    levels = np.unique(np.geomspace(low, high, _n_levels(begun, low, high))) if low < high else np.empty(0)

    def read(levels: Vector, axis: Vector, values: Vector) -> Vector:
        return np.interp(np.log1p(levels), np.log1p(axis), values, left=np.nan, right=np.nan)

    return _Matching(by, levels, [t for t, _ in usable], [axis for _, axis in usable], read)


def _by_loss(trajectories: Sequence[Trajectory]) -> _Matching:
    """Match by the loss that is the first target of most runs."""
    firsts = Counter(next(iter(t.targets)) for t in trajectories if t.targets)
    target = firsts.most_common(1)[0][0] if firsts else ""
    kept = [(t, t.targets[target]) for t in trajectories if target in t.targets]
    kept = [(t, loss) for t, loss in kept if np.isfinite(loss).sum() >= MIN_CHECKPOINTS]
    known = [loss[np.isfinite(loss)] for _, loss in kept]
    low, high = max((k.min() for k in known), default=0.0), min((k[0] for k in known), default=0.0)
    levels = np.unique(np.linspace(low, high, _n_levels(known, low, high))) if low < high else np.empty(0)
    return _Matching("loss", levels, [t for t, _ in kept], [loss for _, loss in kept], _along_loss)


def _along_loss(levels: Vector, axis: Vector, values: Vector) -> Vector:
    """Read values where the loss first falls to each level; NaN where it starts below, or never reaches the level."""
    after = np.searchsorted(-np.minimum.accumulate(axis), -levels)  # first checkpoint at or below the level
    read = np.full(len(levels), np.nan)
    inside = (after > 0) & (after < len(axis))
    i, level = after[inside], levels[inside]
    # Between two checkpoints loss and feature both follow log(1 + step): the same share of the way in both.
    share = (axis[i - 1] - level) / (axis[i - 1] - axis[i])
    between = values[i - 1] + share * (values[i] - values[i - 1])
    read[inside] = np.where(level == axis[i], values[i], between)  # at a checkpoint the one before does not matter
    read[levels == axis[0]] = values[0]
    return read


def _n_levels(axes: Sequence[Vector], low: float, high: float) -> int:
    """Return how many levels the checkpoints allow; the two ends at least."""
    return max(2, min(MAX_LEVELS, *(int(((axis >= low) & (axis <= high)).sum()) for axis in axes)))


def _collapsed(
    feature: str, kind: str, by: str, levels: list[float], runs: list[str], sizes: list[int], values: list[float]
) -> Iterator[tuple[str | int | float, ...]]:
    names, heights = list(dict.fromkeys(runs)), list(dict.fromkeys(levels))
    table = np.array(values).reshape(len(names), len(heights)).T  # as `matched` writes them: level by level of a run
    n_parameters = np.array(sizes, dtype=np.float64).reshape(len(names), len(heights))[:, 0]
    measured = np.isfinite(table).any(axis=0)
    table, n_parameters = table[:, measured], n_parameters[measured]
    common = np.isfinite(table).all(axis=1)
    if len(np.unique(n_parameters)) < 2 or not common.any():
        return
    table, at = table[common], np.array(heights)[common]
    place = (feature, kind, by, len(n_parameters), len(at), float(at.min()), float(at.max()))
    yield (*place, _spread(table), *_with_size(table, n_parameters, derive_seed(tuning.SEED, "collapse", feature, by)))


def _spread(table: Matrix) -> float:
    if len(table) < 2:
        return np.nan
    whole = float(np.std(table, ddof=1))
    within = float(np.sqrt(np.var(table, axis=1, ddof=1).mean()))
    return within / whole if whole > RELATIVE_TOLERANCE * np.abs(table).max() else np.nan


def _with_size(table: Matrix, n_parameters: Vector, seed: int) -> tuple[float, float, float]:
    """Return rho_size, p_size and p_least of values, shape (levels, runs)."""
    varied = table[np.ptp(table, axis=1) > RELATIVE_TOLERANCE * np.abs(table).max(axis=1)]
    if len(np.unique(n_parameters)) < MIN_SIZES or not len(varied):
        return np.nan, np.nan, np.nan
    n = len(n_parameters)
    order = orders(n) if n <= MAX_ENUMERATED_ORDERS else drawn_orders(n, seed)
    perfect = np.argsort(np.argsort(n_parameters, kind="stable")).astype(np.float64)[None]
    own, least = (_medians(values, n_parameters, order) for values in (varied, perfect))
    p_size, p_least = ((np.abs(medians) >= abs(medians[0]) - RELATIVE_TOLERANCE).mean() for medians in (own, least))
    return float(own[0]), float(p_size), float(p_least)


def _medians(table: Matrix, n_parameters: Vector, order: NDArray[np.int64]) -> Vector:
    """Return the median over levels of Spearman's correlation with the size, for each order of the runs."""
    x, y = ranks(n_parameters), ranks(table)
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    return np.asarray(np.median(x[order] @ y.T / np.linalg.norm(x), axis=1))
