"""Association of many features with one target within one run: items 1 to 8 of docs/methods/association.md."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis.ranks import (
    block_draws,
    block_length,
    correlate,
    dense_ranks,
    dependent_p,
    effective_size,
    is_free,
    partial,
    ranks,
    rho_given,
    single_draws,
    two_sided,
)
from toposcope.kernels.resampled_ranks import resampled_spearman
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

RESAMPLES = 1000
MIN_CHECKPOINTS = 5  # an association is measured on at least this many checkpoints
STEP, RATE, NORM = "step", "learning_rate", "weight_norm"
COVARIATES = (STEP, RATE, "cumulative_learning_rate", NORM)
PARTIALLED = (STEP, RATE, NORM)
"""The covariates that are taken out together; within a run the cumulative learning rate is a function of the step."""

COLUMNS = (
    *("rho", "p", "low", "high"),
    *("block_low", "block_high", "block_length", "n_eff", "p_n_eff", "p_shift"),
    *(f"rho_{covariate}" for covariate in COVARIATES),
    *("n_scale", "rho_top_eigenvalue"),
    "rho_with_step",
    *("rho_given_step", "p_given_step", "rho_given_all", "p_given_all", "rho_given_scale", "p_given_scale"),
    *("rho_differences", "p_differences", "rho_differences_given_step", "p_differences_given_step"),
    *("rho_differences_given_all", "p_differences_given_all"),
    *("n_others", "share_others", "share_others_given_step"),
    *("n_others_differences", "share_others_differences"),
    *("rho_twin", "rho_twin_given_step", "p_twin_given_step"),
    "noise",
)
"""The statistics that `associate` returns for each feature, in the order of docs/methods/association.md."""


@dataclass(frozen=True, eq=False)
class FeatureSeries:
    """Features of one run, or of a group of its layers, at its checkpoints."""

    steps: NDArray[np.int64]  # shape (n,)
    features: Matrix  # shape (f, n); naN where unknown

    def at(self, steps: NDArray[np.int64]) -> Matrix:
        """Return the features at some steps; NaN at steps without a checkpoint."""
        place = {int(step): i for i, step in enumerate(self.steps)}
        columns = np.array([place.get(int(step), -1) for step in steps])
        return np.where(columns >= 0, self.features[:, columns], np.nan)


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
    # shape (f, o); strength of the association of each other run's feature with this run's target, given the step: the
    # absolute partial correlation; 0 where the step determines the feature, NaN where the runs cannot be compared
    pairings: Matrix
    # shape (f, o); the same of the changes from checkpoint to checkpoint, given the covariates of this run
    change_pairings: Matrix

    def column(self, name: str) -> Vector:
        """Return one of `COLUMNS`, shape (f,)."""
        return self.table[:, COLUMNS.index(name)]

    def with_own(self, here: int) -> tuple[Matrix, Matrix]:
        """Return `pairings` and `change_pairings` with this run's own strengths as column `here`, shape (f, o + 1)."""
        own, own_changes = (
            np.nan_to_num(np.abs(self.column(f"rho_{name}"))) for name in ("given_step", "differences_given_all")
        )
        return np.insert(self.pairings, here, own, axis=1), np.insert(self.change_pairings, here, own_changes, axis=1)


def associate(task: AssociationTask, seed: int, *, resampled: bool = True) -> AssociationResult:
    """Measure the association of every feature with the target."""
    features, target = task.series.features, task.target
    known = np.isfinite(features) & np.isfinite(target)
    n = known.sum(axis=1)
    table = np.full((len(features), len(COLUMNS)), np.nan)
    pairings, change_pairings = np.full((2, len(features), len(task.others)), np.nan)
    for mask, rows in _by_mask(known):
        if n[rows[0]] < MIN_CHECKPOINTS or np.ptp(target[mask]) == 0:
            continue
        rows = rows[np.ptp(features[np.ix_(rows, mask)], axis=1) > 0]
        if len(rows):
            shared = _SharedCheckpoints(task, rows, mask, seed)
            columns = shared.items() | (shared.resampled() if resampled else {})
            table[rows] = np.column_stack([columns.get(name, np.full(len(rows), np.nan)) for name in COLUMNS])
            pairings[rows], change_pairings[rows] = shared.pairings, shared.change_pairings
    return AssociationResult(n, table, pairings, change_pairings)


def _by_mask(known: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64]]]:
    """Group features that are known at the same checkpoints."""
    if len(known) and known.all():
        yield known[0], np.arange(len(known))
        return
    masks, which = np.unique(known, axis=0, return_inverse=True)
    for i, mask in enumerate(masks):
        yield mask, np.flatnonzero(which.ravel() == i)


class _SharedCheckpoints:
    """Features known at the same checkpoints, none of them constant there."""

    def __init__(self, task: AssociationTask, rows: NDArray[np.int64], mask: NDArray[np.bool_], seed: int) -> None:
        self.task, self.rows, self.mask, self.seed = task, rows, mask, seed
        self.steps = task.series.steps[mask]
        self.values, self.target = task.series.features[np.ix_(rows, mask)], task.target[mask]
        self.x, self.y = ranks(self.values), ranks(self.target)
        covariates = {
            name: covariate[mask] for name, covariate in task.covariates.items() if np.isfinite(covariate[mask]).all()
        }
        self.covariate_values = {name: covariate for name, covariate in covariates.items() if np.ptp(covariate) > 0}
        self.covariates = {name: ranks(covariate) for name, covariate in self.covariate_values.items()}
        self.step = self.covariates[STEP][None]
        self.rho, self.n_eff = correlate(self.x, self.y), effective_size(self.x, self.y)
        self.given_step = partial(self.x, self.y, self.step)

    def items(self) -> dict[str, Vector]:
        """Return the columns of `COLUMNS` that need no resampling, shape (f,)."""
        differences = self._differences()
        given_all = partial(
            self.x, self.y, np.array([self.covariates[name] for name in PARTIALLED if name in self.covariates])
        )
        return {
            "rho": self.rho,
            "p": two_sided(self.rho, np.full(len(self.rho), len(self.y) - 2.0)),
            "n_eff": self.n_eff,
            "p_n_eff": dependent_p(self.rho, self.n_eff),
            **{f"rho_{name}": self._all(self._rho_of_covariate(name)) for name in COVARIATES},
            "rho_with_step": correlate(self.x, self.step[0]),
            "rho_given_step": self.given_step.rho,
            "p_given_step": self.given_step.p,
            "rho_given_all": given_all.rho,
            "p_given_all": given_all.p,
            **self._scales(),
            **differences,
            **self._others(differences["rho_differences_given_all"]),
            **self._twins(),
            "noise": self._noise(),
        }

    def resampled(self) -> dict[str, Vector]:
        """Return the columns of bootstraps and shifts, shape (f,)."""
        return {**self._intervals(), "p_shift": self._shifts()}

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

    def _scales(self) -> dict[str, Vector]:
        """Correlate each feature's own covariate, and the feature given this covariate and the step (item 4)."""
        names = ("n_scale", "rho_top_eigenvalue", "rho_given_scale", "p_given_scale")
        columns = {name: self._all(np.nan) for name in names}
        if not self.task.scales.size:
            return columns
        values = self.task.scales[np.ix_(self.rows, self.mask)]
        scaled = np.flatnonzero(np.isfinite(self.task.scales[self.rows]).any(axis=1))
        covariates, which = np.unique(values[scaled], axis=0, return_inverse=True)
        for i, covariate in enumerate(covariates):
            rows = scaled[which.ravel() == i]
            for column, result in zip(columns.values(), self._given_covariate(rows, covariate), strict=True):
                column[rows] = result
        return columns

    def _given_covariate(self, rows: NDArray[np.int64], covariate: Vector) -> tuple[Vector | float, ...]:
        """Return where the covariate is known: the number of checkpoints, its rho, and partial rho and p given it."""
        known = np.isfinite(covariate)
        n = float(known.sum())
        if n < MIN_CHECKPOINTS or not np.ptp(self.target[known]):
            return n, np.nan, np.nan, np.nan
        x, y = ranks(self.values[np.ix_(rows, known)]), ranks(self.target[known])
        step = ranks(self.steps[known].astype(np.float64))
        if not np.ptp(covariate[known]):  # a constant scale explains nothing
            return n, np.nan, *partial(x, y, step[None])
        scale = ranks(covariate[known])
        return n, float(correlate(scale[None], y)[0]), *partial(x, y, np.array([step, scale]))

    def _differences(self) -> dict[str, Vector]:
        """Correlations of changes from checkpoint to checkpoint (item 5)."""
        x, y = ranks(np.diff(self.values)), ranks(np.diff(self.target))
        given = ("", "_given_step", "_given_all")
        columns = {f"{kind}_differences{g}": self._all(np.nan) for g in given for kind in ("rho", "p")}
        moving = (np.abs(x).max(axis=1) > 0) & (np.abs(y).max() > 0)
        if moving.any():
            x, everything = x[moving], np.ones(len(self.steps), dtype=bool)
            rho = correlate(x, y)
            controls = [self._change_controls(everything, names) for names in ((RATE,), (RATE, NORM))]
            results = (rho, dependent_p(rho, effective_size(x, y)), *(v for c in controls for v in partial(x, y, c)))
            for column, result in zip(columns.values(), results, strict=True):
                column[moving] = result
        return columns

    def _change_controls(self, mask: NDArray[np.bool_], names: Sequence[str]) -> Matrix:
        """Return the centred ranks of the step and of the changes of some covariates, from checkpoint to checkpoint."""
        changes = [np.diff(self.covariate_values[name][mask]) for name in names if name in self.covariate_values]
        return np.array([ranks(values) for values in (self.steps[mask][1:].astype(np.float64), *changes)])

    def _others(self, change: Vector) -> dict[str, Vector]:
        """Return the share of other runs whose feature correlates as strongly with this run's target (item 6)."""
        # Of all other runs at once, row by row: those measured at the same steps share what is computed.
        n_others = len(self.task.others)
        values = np.concatenate(
            [np.empty((0, len(self.steps))), *(other.at(self.steps)[self.rows] for other in self.task.others)]
        )
        plain, given_step, given_covariates = np.full((3, len(values)), np.nan)
        for mask, rows in _by_mask(np.isfinite(values)):
            if mask.sum() < max(MIN_CHECKPOINTS, len(self.steps) / 2):
                continue  # too few common checkpoints for a comparison
            of_runs, target = values[np.ix_(rows, mask)], self.target[mask]
            controls = self._change_controls(mask, (RATE, NORM))
            given_covariates[rows] = _strength(ranks(np.diff(of_runs)), ranks(np.diff(target)), controls)
            step = ranks(self.steps[mask].astype(np.float64))[None]
            x, y = ranks(of_runs), ranks(target)
            given_step[rows] = strength = _strength(x, y, step)
            # Where the step determines the target, the runs are not compared given the step, nor without it.
            plain[rows] = np.where(np.isnan(strength), np.nan, np.nan_to_num(np.abs(correlate(x, y))))
        plain, self.pairings, self.change_pairings = (
            strengths.reshape(n_others, len(self.rows)).T for strengths in (plain, given_step, given_covariates)
        )
        counted, counted_differences = (
            np.isfinite(pairings).sum(axis=1).astype(np.float64) for pairings in (self.pairings, self.change_pairings)
        )
        own, own_given, own_change = (np.nan_to_num(np.abs(rho)) for rho in (self.rho, self.given_step.rho, change))
        shares = {
            name: _ratio((values >= strength[:, None] * (1 - 1e-12)).sum(axis=1).astype(np.float64), count)
            for name, values, strength, count in (
                ("share_others", plain, own, counted),
                ("share_others_given_step", self.pairings, own_given, counted),
                ("share_others_differences", self.change_pairings, own_change, counted_differences),
            )
        }
        return {"n_others": counted, "n_others_differences": counted_differences, **shares}

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


def _strength(x: Matrix, y: Vector, controls: Matrix) -> Vector:
    """Return |correlation| of ranks given controls: 0 where these determine the feature, NaN where the target."""
    if not is_free(y[None], controls)[0]:
        return np.full(len(x), np.nan)
    return np.nan_to_num(np.abs(rho_given(x, y, controls)))


def _percentiles(rho: Matrix) -> tuple[Vector, Vector]:
    """Return the 2.5th and 97.5th percentiles of each row, leaving out resamples without a rho."""
    if np.isnan(rho).any():
        low, high = np.nanpercentile(rho, [2.5, 97.5], axis=1)
    else:
        low, high = np.percentile(rho, [2.5, 97.5], axis=1)
    return low, high


def _ratio(above: Vector, below: Vector) -> Vector:
    return np.asarray(np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0))
