"""Association of one feature with one target within one run, beside the clocks that drift with both (METHODS 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from scipy.stats import t as student

Vector = NDArray[np.float64]

RESAMPLES = 1000
LEVEL = 0.05
FEWEST = 5
"""Fewest checkpoints an association is measured on."""
SAME = 1e-9
"""Residual ranks below this share of the ranks mean: the feature is a function of the controls."""

RULE = (
    f"Verdict, p < {LEVEL:g} after Holm over the whole table: 'none' if rho cannot be told from 0; 'trend only' if it "
    "can, but the partial correlation given the step, or given every clock that is known (step, weight norm, "
    "cumulative learning rate), cannot; 'undecided' if those hold too: 'beyond trend' also takes a block bootstrap, "
    "first differences and the cross-pairing null, which this version does not compute. 'constant': feature or loss "
    f"does not change. 'too few': fewer than {FEWEST} checkpoints."
)


@dataclass(frozen=True)
class Partial:
    """A partial rank correlation; NaN where the controls determine the feature or the target."""

    rho: float
    p: float


@dataclass(frozen=True)
class Association:
    """Items 1, 3 and 4 of METHODS 6 for one feature and target.

    Attributes
    ----------
    n : int
        Checkpoints where both are known.
    rho, p : float
        Spearman; p assumes independent checkpoints, which they are not.
    low, high : float
        95% percentile interval of an i.i.d. bootstrap with 1,000 resamples.
    clocks : dict of float
        rho of each clock with the target on the same checkpoints.
    with_step : float
        rho of the feature with the step.
    given_step, given_all : Partial
        Given the step; given every clock that is known at all n checkpoints.
    """

    n: int
    rho: float
    p: float
    low: float
    high: float
    clocks: dict[str, float] = field(default_factory=dict)
    with_step: float = np.nan
    given_step: Partial = Partial(np.nan, np.nan)
    given_all: Partial = Partial(np.nan, np.nan)


def associate(feature: Vector, target: Vector, clocks: Mapping[str, Vector], seed: int) -> Association:
    """Measure one association.

    Parameters
    ----------
    feature, target : ndarray, shape (n,)
        By checkpoint; NaN where unknown.
    clocks : mapping of ndarray, shape (n,)
        ``step`` first; others may be absent or hold NaN, and are then left out.
    seed : int
        Of the bootstrap.

    Returns
    -------
    Association
        All NaN when fewer than `FEWEST` checkpoints are known, or feature or target is constant.
    """
    known = np.isfinite(feature) & np.isfinite(target)
    x, y = feature[known], target[known]
    if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Association(len(x), np.nan, np.nan, np.nan, np.nan)
    usable = {name: clock[known] for name, clock in clocks.items() if np.isfinite(clock[known]).all()}
    rho, p = spearmanr(x, y)
    low, high = bootstrap_interval(x, y, seed)
    return Association(
        n=len(x),
        rho=float(rho),
        p=float(p),
        low=low,
        high=high,
        clocks={name: float(spearmanr(clock, y)[0]) for name, clock in usable.items() if np.ptp(clock) > 0},
        with_step=float(spearmanr(x, usable["step"])[0]),
        given_step=partial_spearman(x, y, [usable["step"]]),
        given_all=partial_spearman(x, y, list(usable.values())),
    )


def partial_spearman(x: Vector, y: Vector, controls: Sequence[Vector]) -> Partial:
    """Correlate the ranks of x and y after a linear regression of both on the ranks of the controls.

    p is that of Student's t with n - 2 - k degrees of freedom, k the rank of the controls. It is nominal: residuals of
    ranks around a strong trend are not independent, and a level of .05 is then in truth about .09 (51 checkpoints).
    """
    design = np.column_stack([np.ones(len(x)), *(rankdata(c) for c in controls)])
    residuals = []
    for values in (x, y):
        ranks = rankdata(values)
        fit = np.linalg.lstsq(design, ranks, rcond=None)[0]
        residual = ranks - design @ fit
        if np.linalg.norm(residual) <= SAME * np.linalg.norm(ranks):
            return Partial(np.nan, np.nan)
        residuals.append(residual / np.linalg.norm(residual))
    rho = float(np.clip(residuals[0] @ residuals[1], -1, 1))
    freedom = len(x) - 1 - int(np.linalg.matrix_rank(design))
    if freedom < 1:
        return Partial(rho, np.nan)
    statistic = np.inf if abs(rho) == 1 else abs(rho) * np.sqrt(freedom / (1 - rho**2))
    return Partial(rho, float(2 * student.sf(statistic, freedom)))


def bootstrap_interval(x: Vector, y: Vector, seed: int) -> tuple[float, float]:
    """Return the 95% percentile interval of Spearman's rho over resampled checkpoints."""
    draws = np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))
    a, b = (rankdata(values[draws], axis=1) for values in (x, y))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    norms = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    drawn = norms > 0  # a resample of one value has no rho
    rho = (a * b).sum(axis=1)[drawn] / norms[drawn]
    low, high = np.percentile(rho, [2.5, 97.5])
    return float(low), float(high)


def holm(p: Vector) -> Vector:
    """Return Holm's adjusted p-values; NaN stays NaN and is not counted."""
    adjusted = np.full(len(p), np.nan)
    order = [i for i in np.argsort(p, kind="stable") if np.isfinite(p[i])]
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, float(p[i]) * (len(order) - rank)))
        adjusted[i] = running
    return adjusted


def verdict(n: int, rho: float, p: float, p_given_step: float, p_given_all: float) -> str:
    """Return the verdict of `RULE` from the number of checkpoints and Holm-adjusted p-values."""
    if n < FEWEST:
        return "too few"
    if not np.isfinite(rho):
        return "constant"
    if not p < LEVEL:
        return "none"
    return "undecided" if p_given_step < LEVEL and p_given_all < LEVEL else "trend only"
