"""Permutation tests: signs, groups and orders, and correlations across runs whose final losses are permuted."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import factorial, prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.analysis import tuning
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE, mid_ranks, orthonormal_basis
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

MAX_ENUMERATED_SIGNS, MAX_ENUMERATED_ORDERS = 14, 8
"""All signs, and all orders, of up to this many values are enumerated."""
N_DRAWN_SIGNS, N_DRAWN_ORDERS = 1 << MAX_ENUMERATED_SIGNS, 5000
RELATIVE_TOLERANCE = 1e-12


@lru_cache(MAX_ENUMERATED_ORDERS)
def orders(n: int) -> NDArray[np.int64]:
    """Return all n! orders of n places, the identity first, shape (n!, n)."""
    return np.array(list(itertools.permutations(range(n))))


@lru_cache(4)
def drawn_orders(n: int, seed: int) -> Indices:
    """Return random orders of n places, the identity first, shape (`N_DRAWN_ORDERS`, n)."""
    rng = np.random.default_rng(seed)
    return np.vstack([np.arange(n), rng.permuted(np.tile(np.arange(n), (N_DRAWN_ORDERS - 1, 1)), axis=1)])


def sign_flip(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p of the mean of paired differences, by flipping their signs.

    All 2^n signs of up to 14 differences are enumerated; of more, 2^14 random ones and the observed ones.

    Parameters
    ----------
    differences : ndarray, shape (n,)
        At least one.
    """
    return float(sign_flips(differences[None])[0])


def sign_flips(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `sign_flip` of each row, shape (k, n)."""
    n = differences.shape[1]
    if n <= MAX_ENUMERATED_SIGNS:
        signs = 1 - 2 * (np.arange(1 << n)[:, None] >> np.arange(n) & 1)
    else:
        drawn = np.random.default_rng(derive_seed(42, "signs", n)).choice([-1, 1], (N_DRAWN_SIGNS, n))
        signs = np.vstack([np.ones(n, dtype=drawn.dtype), drawn])
    sums = np.abs(differences @ signs.T.astype(np.float64))
    reached = sums >= np.abs(differences.sum(axis=1, keepdims=True)) * (1 - RELATIVE_TOLERANCE)
    return np.asarray(reached.mean(axis=1))


Scale = Literal["ranks", "values"]

MIN_FREEDOM = 2  # residual degrees of freedom (runs - strata - controls - 1) below which a correlation is not defined
N_FIRST = 1000  # permutations drawn for every feature; more are drawn for those with few exceedances
MIN_LAST, PER_FEATURE, MAX_LAST = 20_000, 50, 400_000
"""Permutations of the last stage: so many for each feature tested, within these bounds."""
MIN_EXCEEDANCES = 25  # a feature with this many permutations as extreme as itself is settled
GROWTH = 4  # each further stage draws this many times the permutations of the one before
BAND = 0.95
TOLERANCE = 1e-9  # correlations that differ by less are equal
MAX_STATISTICS = 1 << 24  # statistics held in memory at once: features times permutations
BLOCK_FEATURES, MIN_BLOCK, MAX_BLOCK = 128, 256, 8192
"""Features, and permutations, that are multiplied at once: more permutations where features are few."""


@dataclass(frozen=True, eq=False)
class StepCorrelations:
    """Correlations across runs, step by step and combined."""

    # shape (f, t); at each step; NaN where not defined: the feature or the final loss is the same in all runs there, or
    # a function of the controls, or too few runs are left
    rho: Matrix
    mean: Vector  # shape (f,); of rho over the steps where it is defined
    # shape (f,); of the absolute mean and the largest absolute value over steps together: the share of permutations for
    # which the smaller of the p-values of the two is as small
    p: Vector
    band: Vector  # shape (f,); absolute correlation that 95% of the permutations exceed at no step


def scores(values: NDArray[np.float64], strata: Indices, scale: Scale) -> NDArray[np.float64]:
    """Return values, or their mid-ranks within strata as a share of the runs there, less their mean by stratum."""
    result = np.empty(values.shape)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        of_stratum = values[..., members]
        if scale == "ranks":
            of_stratum = mid_ranks(of_stratum) / (len(members) + 1)
        result[..., members] = of_stratum - of_stratum.mean(axis=-1, keepdims=True)
    return result


def _rounding(values: NDArray[np.float64], scale: Scale) -> Vector:
    """Return below which size scores of values are rounding errors, by series."""
    size = np.abs(values).max(axis=-1) if scale == "values" else np.ones(values.shape[:-1])
    return np.asarray(MIN_RESIDUAL_SHARE * size)


def control_basis(controls: Matrix, strata: Indices, scale: Scale) -> Matrix:
    """Return an orthonormal basis of controls, then squares, then cubes, with three runs or more for each term."""
    linear = scores(controls, strata, scale)
    sizes = np.abs(linear).max(axis=1, initial=0.0)
    varied = sizes > _rounding(controls, scale)
    linear = linear[varied] / sizes[varied, None]
    n_terms = max(len(linear), (len(strata) - len(np.unique(strata)) + 1) // tuning.RUNS_PER_TERM)
    powers = [scores(linear**degree, strata, "values") for degree in range(1, tuning.MAX_CONTROL_DEGREE + 1)]
    return orthonormal_basis(np.concatenate(powers)[:n_terms])


def correlate_across_runs(
    features: NDArray[np.float64], final: Vector, controls: NDArray[np.float64], strata: Indices, scale: Scale = "ranks"
) -> StepCorrelations:
    """Correlate features with the final loss across runs at each step, given controls, and permute the runs.

    Powers of the controls (`control_basis`) are regressed out of both. The final losses are permuted within strata, by
    the same permutation at all steps, and regressed on the controls anew (Manly 1986; Winkler et al. 2014). The test is
    exact if the final loss depends on neither feature nor controls, and without controls.

    Parameters
    ----------
    features : ndarray, shape (f, t, n)
        At t steps of n runs; NaN where unknown: that step of that feature is left out.
    final : ndarray, shape (n,)
    controls : ndarray, shape (k, t, n)
        A step where a control is unknown for a run is left out. One that is equal in all runs explains nothing.
    strata : ndarray, shape (n,), int64
        Runs are compared with those of the same stratum.
    scale : "ranks" or "values"
        Of features, final loss and controls alike.

    Notes
    -----
    Permutations are drawn in stages. A feature is settled at the first stage with 25 permutations as extreme as itself;
    stopping so keeps p valid, since what goes on has a p below that of any feature settled before (Besag and Clifford
    1991). The last stage has 50 permutations for each feature, or all 40,320 orders of 8 runs.
    """
    test = _Test.of(features, final, controls, strata, scale)
    p, band = np.full((2, len(features)), np.nan)
    open_ = np.flatnonzero(test.counts)
    for stage, permutations in enumerate(test.stages(len(open_))):
        if not len(open_):
            break
        still_open = []
        for rows in np.array_split(open_, 1 + len(open_) * len(permutations) // MAX_STATISTICS):
            means, maxima = test.statistics(rows, permutations)
            if stage == 0:
                place = min(int(np.ceil(BAND * len(permutations))), len(permutations)) - 1
                band[rows] = np.partition(maxima, place, axis=1)[:, place]
            for row, mean, largest in zip(rows, means, maxima, strict=True):
                count = exceedances(mean, largest)
                p[row] = count / len(permutations)
                if count < MIN_EXCEEDANCES:
                    still_open.append(row)
        open_ = np.array(still_open, dtype=np.int64)
    return StepCorrelations(test.rho, test.mean, p, band)


def correlate_at_steps(
    features: NDArray[np.float64], final: Vector, controls: NDArray[np.float64], strata: Indices, scale: Scale = "ranks"
) -> Matrix:
    """Return the correlations of `correlate_across_runs` at each step, shape (f, t), without testing them."""
    return _Test.of(features, final, controls, strata, scale).rho


def exceedances(mean: Vector, largest: Vector) -> int:
    """Count the permutations whose smaller p of the two statistics is as small as that of the first one."""
    smaller = min(int((statistic >= statistic[0] - TOLERANCE).sum()) for statistic in (mean, largest))
    either = np.zeros(len(mean), dtype=bool)
    for statistic in (mean, largest):
        # A permutation has a p of at most smaller / b if no more than `smaller` are as large as it is.
        threshold = np.partition(statistic, len(statistic) - smaller)[len(statistic) - smaller]
        at_least = statistic >= threshold - TOLERANCE
        either |= at_least if at_least.sum() <= smaller else statistic > threshold + TOLERANCE
    return max(int(either.sum()), smaller)


@dataclass(frozen=True, eq=False)
class _Test:
    """Residual ranks at each step, and what permuting the runs makes of them."""

    # shape (t, f, n); residual ranks of the features, each of length 1; zeros where not defined
    left: NDArray[np.float64]
    target: Vector  # shape (n,); scores of the final loss
    bases: list[Matrix]  # shape (n, k); orthonormal bases of the ranks of the controls
    rho: Matrix  # shape (f, t)
    strata: Indices

    @classmethod
    def of(
        cls, features: NDArray[np.float64], final: Vector, controls: NDArray[np.float64], strata: Indices, scale: Scale
    ) -> "_Test":
        n_features, n_steps, n = features.shape
        left = np.zeros((n_steps, n_features, n))
        rho, bases = np.full((n_features, n_steps), np.nan), []
        y = scores(final, strata, scale)
        for t in range(n_steps):
            basis = np.empty((n, 0))
            if np.isfinite(controls[:, t]).all():
                basis = control_basis(controls[:, t], strata, scale)
                known = np.isfinite(features[:, t]).all(axis=1)
                x = scores(features[known, t], strata, scale)
                residual, target = x - (x @ basis) @ basis.T, y - basis @ (basis.T @ y)
                sizes, size = np.linalg.norm(residual, axis=1), np.linalg.norm(target)
                free = sizes > _rounding(features[known, t], scale)
                enough = n - len(np.unique(strata)) - basis.shape[1] - 1 >= MIN_FREEDOM
                if enough and size > _rounding(final, scale):
                    rows = np.flatnonzero(known)[free]
                    left[t, rows] = residual[free] / sizes[free, None]
                    rho[rows, t] = np.clip(left[t, rows] @ target / size, -1, 1)
            bases.append(basis)
        return cls(left, y, bases, rho, strata)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.asarray(np.isfinite(self.rho).sum(axis=1))

    @property
    def mean(self) -> Vector:
        total = np.nan_to_num(self.rho).sum(axis=1)
        return np.asarray(np.divide(total, self.counts, out=np.full(len(self.rho), np.nan), where=self.counts > 0))

    def stages(self, n_tested: int) -> Iterator[Indices]:
        """Yield the permutations of each stage, each with those of the one before; the given order comes first."""
        sizes = np.unique(self.strata, return_counts=True)[1]
        if len(sizes) == 1 and sizes[0] <= MAX_ENUMERATED_ORDERS:
            yield draw_permutations(self.strata, N_FIRST, tuning.SEED)
            yield orders(int(sizes[0]))
            return
        last = min(max(MIN_LAST, PER_FEATURE * n_tested), MAX_LAST)
        count = N_FIRST
        while True:
            yield draw_permutations(self.strata, count, tuning.SEED)
            if count >= last:
                return
            count = min(count * GROWTH, last)

    def statistics(self, rows: Indices, permutations: Indices) -> tuple[Matrix, Matrix]:
        """Return absolute mean and largest absolute correlation, shape (rows, permutations)."""
        steps = np.flatnonzero(np.isfinite(self.rho[rows]).any(axis=0))
        left = self.left[np.ix_(steps, rows)]
        means, maxima = np.empty((2, len(rows), len(permutations)))
        size = max(MIN_BLOCK, MAX_BLOCK // max(len(rows), 1))
        for begin in range(0, len(permutations), size):
            block = slice(begin, begin + size)
            moved = self.target[permutations[block].T]
            inverse_sizes = [_inverse_sizes(moved, self.bases[t]) for t in steps]
            for first in range(0, len(rows), BLOCK_FEATURES):  # small enough for sums and maxima to stay in the cache
                part = slice(first, first + BLOCK_FEATURES)
                total, largest = np.zeros((2, *means[part, block].shape))
                for of_step, inverse_size in zip(left, inverse_sizes, strict=True):
                    rho = of_step[part] @ moved
                    rho *= inverse_size
                    total += rho
                    np.maximum(largest, np.abs(rho, out=rho), out=largest)
                means[part, block], maxima[part, block] = np.abs(total), largest
        means /= self.counts[rows, None]
        return means, maxima


def _inverse_sizes(moved: Matrix, basis: Matrix) -> Vector:
    """Return the inverse length of the residuals of permuted losses, shape (n, permutations); 0 if nothing is left."""
    total = (moved**2).sum(axis=0)
    squares = total - ((basis.T @ moved) ** 2).sum(axis=0)
    squares[squares <= MIN_RESIDUAL_SHARE * total] = np.inf
    return np.asarray(1 / np.sqrt(squares))


def draw_permutations(strata: Indices, count: int, seed: int) -> Indices:
    """Draw orders of the runs within their strata, the given order first, shape (count, n)."""
    result = np.tile(np.arange(len(strata)), (count, 1))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        rng = np.random.default_rng(derive_seed(seed, "runs", int(stratum)))
        result[1:, members] = rng.permuted(np.tile(members, (count - 1, 1)), axis=1)
    return result


def n_orders(strata: Indices) -> int:
    """Return how many orders of the runs within their strata there are."""
    return prod(factorial(int(size)) for size in np.unique(strata, return_counts=True)[1])
