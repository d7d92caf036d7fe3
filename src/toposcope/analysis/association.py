"""Association of many features with one target within one run: items 1 to 8 of docs/methods/association.md."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.given_covariates import (
    NORM,
    PROGRESS,
    RATE,
    STEP,
    correlations_given,
    covariate_basis,
    left_ranks,
    noise_given,
    union_basis,
)
from toposcope.analysis.ranks import (
    block_draws,
    block_length,
    correlate,
    dense_ranks,
    dependent_p,
    effective_size,
    partial,
    ranks,
    single_draws,
    two_sided,
)
from toposcope.kernels.resampled_ranks import resampled_spearman
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

RESAMPLES = 1000
MIN_CHECKPOINTS = 5  # an association is measured on at least this many checkpoints
COVARIATES = (STEP, RATE, PROGRESS, NORM)

COLUMNS = (
    *("rho", "p", "low", "high", "pearson"),
    *("block_low", "block_high", "block_length", "n_eff", "p_n_eff", "p_shift"),
    *(f"rho_{covariate}" for covariate in COVARIATES),
    *("n_scale", "rho_top_eigenvalue"),
    "rho_with_step",
    *("rho_given_step", "p_given_step", "rho_given_all", "p_given_all", "rho_given_scale", "p_given_scale"),
    *("rho_differences", "p_differences", "rho_differences_given_step", "p_differences_given_step"),
    *("n_others", "share_others"),
    *("rho_twin", "rho_twin_given_step", "p_twin_given_step"),
    "noise",
)
"""The statistics that `associate` returns for each feature, in the order of docs/methods/association.md."""


@dataclass(frozen=True, eq=False)
class FeatureSeries:
    """Features of one run, or of a group of its layers, at its checkpoints."""

    steps: NDArray[np.int64]  # shape (n,)
    features: Matrix  # shape (f, n); naN where unknown
    basis: Matrix | None = None  # shape (n, k); of the run's covariates (`covariate_basis`), if it is another run

    def at(self, steps: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
        """Return the features and the basis at some steps; NaN at steps without a checkpoint."""
        place = {int(step): i for i, step in enumerate(self.steps)}
        columns = np.array([place.get(int(step), -1) for step in steps])
        basis = covariate_basis(self.steps, {}) if self.basis is None else self.basis
        return (
            np.where(columns >= 0, self.features[:, columns], np.nan),
            np.where(columns[:, None] >= 0, basis[columns], np.nan),
        )


@dataclass(frozen=True, eq=False)
class AssociationTask:
    """Some features and one target whose association is to be measured."""

    series: FeatureSeries
    target: Vector  # shape (n,); naN where unknown
    # shape (n,); ``step`` at least; a covariate that is unknown where feature and target are known is left out
    covariates: Mapping[str, Vector]
    others: Sequence[FeatureSeries] = ()  # the same features, row by row, of the other runs of the study
    # shape (f, n); the scale-free twin of each feature; NaN without one
    twins: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    # shape (f, n); standard deviation of each feature over draws or batches; NaN where it has none
    noise: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    # shape (f, n); a covariate of each feature's own: the top eigenvalue of its hidden states; NaN without one
    scales: Matrix = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True, eq=False)
class AssociationResult:
    """The association of each feature with the target."""

    n: NDArray[np.int64]  # shape (f,); checkpoints where feature and target are known
    # shape (f, len(COLUMNS); naN where not defined: fewer than `MIN_CHECKPOINTS` checkpoints, or feature or target
    # constant
    table: Matrix
    # shape (f, o); by how much each other run's feature is correlated more strongly with this run's target than its own
    # is, given the covariates of both; NaN where the runs cannot be compared
    pairings: Matrix

    def column(self, name: str) -> Vector:
        """Return one of `COLUMNS`, shape (f,)."""
        return self.table[:, COLUMNS.index(name)]


def associate(task: AssociationTask, seed: int) -> AssociationResult:
    """Measure the association of every feature with the target."""
    features, target = task.series.features, task.target
    known = np.isfinite(features) & np.isfinite(target)
    n = known.sum(axis=1)
    table = np.full((len(features), len(COLUMNS)), np.nan)
    excess = np.full((len(features), len(task.others)), np.nan)
    for mask, rows in _by_mask(known):
        if n[rows[0]] < MIN_CHECKPOINTS or np.ptp(target[mask]) == 0:
            continue
        rows = rows[np.ptp(features[np.ix_(rows, mask)], axis=1) > 0]
        if len(rows):
            shared = _SharedCheckpoints(task, rows, mask, seed)
            columns = shared.items()
            table[rows] = np.column_stack([columns.get(name, np.full(len(rows), np.nan)) for name in COLUMNS])
            excess[rows] = shared.pairings
    return AssociationResult(n, table, excess)


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values less their mean along the last axis, over their largest size: a square is then in range."""
    largest = np.maximum(np.abs(values).max(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    scaled = values / largest
    return np.asarray(scaled - scaled.mean(axis=-1, keepdims=True))


def _by_mask(known: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64]]]:
    """Group features that are known at the same checkpoints."""
    if len(known) and known.all():
        yield known[0], np.arange(len(known))
        return
    masks, which = np.unique(known, axis=0, return_inverse=True)
    for i, mask in enumerate(masks):
        yield mask, np.flatnonzero(which.ravel() == i)


def pairings(values: Matrix, target: Vector, basis: Matrix, others: Sequence[tuple[Matrix, Matrix]]) -> Matrix:
    """Return by how much the features of each other run correlate more strongly with a target, shape (f, o).

    Others are features and bases at the same checkpoints, NaN where they have none: half of them have to be common.
    Both runs' features are correlated given the covariates of both: what these leave little of is the same for both.
    """
    excess, noise = np.full((len(values), len(others)), np.nan), noise_given(target, basis)
    for i, (theirs, other_basis) in enumerate(others):
        for mask, rows in _by_mask(np.isfinite(theirs)):
            if mask.sum() < max(MIN_CHECKPOINTS, len(target) / 2):
                continue
            both = union_basis(np.column_stack([basis[mask], other_basis[mask]]))
            series = np.concatenate([values[np.ix_(rows, mask)], theirs[np.ix_(rows, mask)], target[None, mask]])
            left = left_ranks(series, both, replace(noise, scale=noise.scale[mask]))
            if left[-1].any() and mask.sum() - both.shape[1] >= 2:
                own, other = np.split(np.nan_to_num(np.abs(correlate(left[:-1], left[-1]))), 2)
                excess[rows, i] = other - own
    return excess


class _SharedCheckpoints:
    """Features known at the same checkpoints, none of them constant there."""

    def __init__(self, task: AssociationTask, rows: NDArray[np.int64], mask: NDArray[np.bool_], seed: int) -> None:
        self.task, self.rows, self.mask, self.seed = task, rows, mask, seed
        self.steps = task.series.steps[mask]
        self.values, self.target = task.series.features[np.ix_(rows, mask)], task.target[mask]
        self.x, self.y = ranks(self.values), ranks(self.target)
        covariates = {name: covariate[mask] for name, covariate in task.covariates.items()}
        self.covariate_values = {
            name: values for name, values in covariates.items() if np.ptp(values) > 0
        }  # not of NaN
        self.covariates = {name: ranks(covariate) for name, covariate in self.covariate_values.items()}
        self.basis = covariate_basis(self.steps, self.covariate_values)
        self.step = self.covariates[STEP][None]
        self.rho, self.n_eff = correlate(self.x, self.y), effective_size(self.x, self.y)
        self.given_step = partial(self.x, self.y, self.step)

    def items(self) -> dict[str, Vector]:
        """Return the columns of `COLUMNS`, shape (f,)."""
        return {
            "rho": self.rho,
            "p": two_sided(self.rho, np.full(len(self.rho), len(self.y) - 2.0)),
            "pearson": correlate(_centred(self.values), _centred(self.target)),
            "n_eff": self.n_eff,
            "p_n_eff": dependent_p(self.rho, self.n_eff),
            **self._intervals(),
            "p_shift": self._shifts(),
            **{f"rho_{name}": self._all(self._rho_of_covariate(name)) for name in COVARIATES},
            "rho_with_step": correlate(self.x, self.step[0]),
            "rho_given_step": self.given_step.rho,
            "p_given_step": self.given_step.p,
            **self._given_all(),
            **self._differences(),
            **self._others(),
            **self._twins(),
            "noise": self._noise(),
        }

    def _all(self, value: float) -> Vector:
        return np.full(len(self.rows), value)

    def _rho_of_covariate(self, name: str) -> float:
        return float(correlate(self.covariates[name][None], self.y)[0]) if name in self.covariates else np.nan

    def _intervals(self) -> dict[str, Vector]:
        """Percentile intervals of 95%: of single checkpoints (item 1), and of blocks of neighbours (item 2)."""
        # Features with the same ranks, as many have that follow the step, have the same intervals.
        distinct, which = np.unique(dense_ranks(self.x), axis=0, return_inverse=True)
        y, n = dense_ranks(self.y), len(self.y)
        low, high = _percentiles(resampled_spearman(distinct, y, single_draws(n, RESAMPLES, self.seed)))
        lengths = np.maximum(block_length(distinct.astype(np.float64)), block_length(self.y[None]))
        block_low, block_high = np.empty(len(distinct)), np.empty(len(distinct))
        for length in np.unique(lengths):
            same = lengths == length
            draws = block_draws(n, int(length), RESAMPLES, derive_seed(self.seed, "blocks", int(length)))
            block_low[same], block_high[same] = _percentiles(resampled_spearman(distinct[same], y, draws))
        names = ("low", "high", "block_low", "block_high", "block_length")
        columns = (low, high, block_low, block_high, lengths.astype(np.float64))
        return {name: values[which.ravel()] for name, values in zip(names, columns, strict=True)}

    def _shifts(self) -> Vector:
        """Return the share of circular shifts of the target, the unshifted one included, that correlate as strongly."""
        shifted = np.array([np.roll(self.y, k) for k in range(len(self.y))])
        return np.asarray((np.abs(self.x @ shifted.T) >= np.abs(self.x @ self.y)[:, None] * (1 - 1e-12)).mean(axis=1))

    def _given_all(self) -> dict[str, Vector]:
        """Correlate given all covariates; of features with a scale of their own where it is known, and given it alone.

        The scale is correlated too (item 4).
        """
        names = ("rho_given_all", "p_given_all", "n_scale", "rho_top_eigenvalue", "rho_given_scale", "p_given_scale")
        columns = {name: self._all(np.nan) for name in names}
        scales = self.task.scales[np.ix_(self.rows, self.mask)] if self.task.scales.size else np.full((1, 1), np.nan)
        distinct, which = np.unique(np.nan_to_num(scales, nan=np.inf), axis=0, return_inverse=True)
        for i, scale in enumerate(distinct):
            rows = np.flatnonzero(np.broadcast_to(which.ravel() == i, len(self.rows)))
            results: Sequence[Vector | float] = correlations_given(self.values[rows], self.target, self.basis)
            if (known := np.isfinite(scale)).any():
                results = self._given_scale(rows, known, scale[known])
            for name, result in zip(names, results, strict=False):
                columns[name][rows] = result
        return columns

    def _given_scale(self, rows: NDArray[np.int64], known: NDArray[np.bool_], scale: Vector) -> list[Vector | float]:
        """Return the columns of `_given_all` at the checkpoints where a scale is known."""
        n, target = float(known.sum()), self.target[known]
        if n < MIN_CHECKPOINTS or not np.ptp(target):
            return [np.nan, np.nan, n, np.nan, np.nan, np.nan]
        values = self.values[np.ix_(rows, known)]
        covariates = {name: covariate[known] for name, covariate in self.covariate_values.items()}
        given_all = correlations_given(values, target, covariate_basis(self.steps[known], covariates, scale))
        y, controls = ranks(target), ranks(np.array([self.steps[known].astype(np.float64), scale]))
        # a constant scale explains nothing
        rho = float(correlate(controls[1:], y)[0])
        return [*given_all, n, rho, *partial(ranks(values), y, controls)]

    def _differences(self) -> dict[str, Vector]:
        """Correlations of changes from checkpoint to checkpoint (item 5)."""
        x, y = ranks(np.diff(self.values)), ranks(np.diff(self.target))
        given = ("", "_given_step")
        columns = {f"{kind}_differences{g}": self._all(np.nan) for g in given for kind in ("rho", "p")}
        moving = (np.abs(x).max(axis=1) > 0) & (np.abs(y).max() > 0)
        if moving.any():
            x = x[moving]
            rho = correlate(x, y)
            rate = [np.diff(self.covariate_values[RATE])] if RATE in self.covariate_values else []
            controls = np.array([ranks(values) for values in (self.steps[1:].astype(np.float64), *rate)])
            results = (rho, dependent_p(rho, effective_size(x, y)), *partial(x, y, controls))
            for column, result in zip(columns.values(), results, strict=True):
                column[moving] = result
        return columns

    def _others(self) -> dict[str, Vector]:
        """Return the share of other runs whose feature correlates as strongly with this run's target (item 6)."""
        others = [(values[self.rows], basis) for values, basis in (other.at(self.steps) for other in self.task.others)]
        self.pairings = pairings(self.values, self.target, self.basis, others)
        counted = np.isfinite(self.pairings).sum(axis=1).astype(np.float64)
        as_strong = (self.pairings >= -1e-12).sum(axis=1).astype(np.float64)
        return {"n_others": counted, "share_others": _ratio(as_strong, counted)}

    def _twins(self) -> dict[str, Vector]:
        """Correlate the scale-free twins (item 7)."""
        columns = {name: self._all(np.nan) for name in ("rho_twin", "rho_twin_given_step", "p_twin_given_step")}
        if not self.task.twins.size:
            return columns
        values = self.task.twins[np.ix_(self.rows, self.mask)]
        varied = np.isfinite(values).all(axis=1) & (np.ptp(values, axis=1) > 0)
        if varied.any():
            twins = ranks(values[varied])
            given = partial(twins, self.y, self.step)
            for column, result in zip(columns.values(), (correlate(twins, self.y), *given), strict=True):
                column[varied] = result
        return columns

    def _noise(self) -> Vector:
        """Divide the standard deviation over draws by the change between checkpoints, medians of both (item 8)."""
        if not self.task.noise.size:
            return self._all(np.nan)
        noise = self.task.noise[np.ix_(self.rows, self.mask)]
        known = np.asarray(np.isfinite(noise).all(axis=1))
        change = np.median(np.abs(np.diff(self.values)), axis=1)
        return np.where(known, _ratio(np.median(np.where(known[:, None], noise, 0.0), axis=1), change), np.nan)


def _percentiles(rho: Matrix) -> tuple[Vector, Vector]:
    """Return the 2.5th and 97.5th percentiles of each row, leaving out resamples without a rho."""
    if np.isnan(rho).any():
        low, high = np.nanpercentile(rho, [2.5, 97.5], axis=1)
    else:
        low, high = np.percentile(rho, [2.5, 97.5], axis=1)
    return low, high


def _ratio(above: Vector, below: Vector) -> Vector:
    return np.asarray(np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0))
