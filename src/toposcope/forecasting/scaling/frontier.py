"""How compute-optimal parameters and tokens grow with compute, N* ~ C^a and D* ~ C^b, three ways.

The approaches of Hoffmann et al. 2022: the lower envelope of training curves (section 3.1), parabolas through points of
equal compute (3.2), and the law of N and D (3.3). The first two know nothing of the law and check it. As C = 6 N D, the
two exponents add up to 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.planner import Interval, optimal_split, over_bootstrap
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import RESAMPLES, FittedScalingLaw
from toposcope.seeds import derive_seed
from toposcope.typing import Vector

N_BUDGETS = 200  # budgets at which training curves are compared
MIN_BUDGETS = 3
MIN_PARABOLA_POINTS = 5  # points of equal compute; a parabola takes three, and their unequal compute one
MAX_COMPUTE_RATIO = 1.2  # largest over smallest compute of points that count as of equal compute


@dataclass(frozen=True, eq=False)
class Frontier:
    """The compute-optimal models as one approach finds them."""

    approach: str  # ``envelope``, ``parabolas`` or ``law``
    a: Interval  # exponent of N* in C, with its 95% interval over resampled runs
    C: Vector  # shape (k,); budgets, and N* at each under it
    N: Vector
    remarks: tuple[str, ...] = ()

    @property
    def b(self) -> Interval:
        """The exponent of D* in C."""
        return Interval(1 - self.a.value, 1 - self.a.high, 1 - self.a.low)

    def optimal_parameters(self, budget_flops: float) -> float:
        """Return N* of a budget by the power law through N."""
        at = np.log(self.N).mean() + self.a.value * (np.log(budget_flops) - np.log(self.C).mean())
        return float(np.exp(at))


def approaches(fitted: FittedScalingLaw, *, seed: int = 0) -> tuple[list[Frontier], dict[str, str]]:
    """Return the result of each approach that the points allow, and why they do not allow the others, by name."""
    found, refused = [by_law(fitted)], {}
    for name, approach in (("envelope", by_envelope), ("parabolas", by_parabolas)):
        try:
            found.append(approach(fitted.points, resamples=200, seed=seed))
        except RefusedError as error:
            refused[name] = str(error)
    return found, refused


def by_law(fitted: FittedScalingLaw) -> Frontier:
    """Return approach 3: a = beta / (alpha + beta) and b = alpha / (alpha + beta)."""
    a = over_bootstrap(fitted, lambda law: law.beta / (law.alpha + law.beta))
    ends = np.array([fitted.points.C.min(), fitted.points.C.max()])
    return Frontier("law", a, ends, np.array([optimal_split(fitted.law, float(c))[0] for c in ends]))


def by_envelope(points: Points, *, resamples: int = RESAMPLES, seed: int = 0) -> Frontier:
    """Return approach 1: at many budgets, the size whose training curve is lowest there.

    Curves are linear in ln C between their points. A budget counts where both a smaller and a larger model than the
    best one were seen at it.
    """
    N, budgets, losses = _curves(points)

    def frontier(counts: Vector) -> tuple[Vector, Vector]:
        seen = np.where(counts[:, None] > 0, losses, np.inf)
        here = np.isfinite(seen)
        best = N[seen.argmin(axis=0)]
        low = np.where(here, N[:, None], np.inf).min(axis=0)
        high = np.where(here, N[:, None], -np.inf).max(axis=0)
        inner = (low < best) & (best < high)
        return budgets[inner], best[inner]

    few = (
        "{} sizes are best at some budget between smaller and larger ones; at least {} are needed, with training "
        "curves that overlap in compute"
    )
    return _frontier("envelope", frontier, len(N), few, resamples, seed)


def by_parabolas(points: Points, *, resamples: int = RESAMPLES, seed: int = 0) -> Frontier:
    """Return approach 2: at each of a few budgets, the vertex of a parabola of the loss in ln N.

    Points are of one budget if their compute is within a factor of 1.2; a term in ln C takes up what is left of the
    difference. A budget counts if it has 5 points of 4 sizes, and a lowest place between them.
    """
    log_n, log_c = np.log(points.N), np.log(points.C)
    groups = _of_equal_compute(log_c)
    centres = np.array([np.exp(log_c[g].mean()) for g in groups])
    _, runs = np.unique(points.run, return_inverse=True)

    def frontier(counts: Vector) -> tuple[Vector, Vector]:
        weights = counts[runs]
        vertices = np.array([_vertex(log_n[g], log_c[g], points.loss[g], weights[g]) for g in groups])
        known = np.isfinite(vertices)
        return centres[known], np.exp(vertices[known])

    few = "{} budgets have points of equal compute on both sides of the best size; at least {} are needed"
    return _frontier("parabolas", frontier, int(runs.max()) + 1, few, resamples, seed)


def _curves(points: Points) -> tuple[Vector, Vector, NDArray[np.float64]]:
    """Return sizes (r,), budgets (k,), and the loss of each run at each budget (r, k), infinite where not seen."""
    log_c = np.log(points.C)
    budgets = np.linspace(log_c.min(), log_c.max(), N_BUDGETS)
    sizes, losses = [], []
    for run in np.unique(points.run):
        of = np.flatnonzero(points.run == run)
        of = of[np.argsort(log_c[of])]
        if len(of) > 1:
            sizes.append(float(points.N[of[0]]))
            losses.append(np.interp(budgets, log_c[of], points.loss[of], left=np.inf, right=np.inf))
    if not sizes:
        raise RefusedError("envelope: no run has more than one point; training curves are needed")
    return np.array(sizes), np.exp(budgets), np.array(losses)


def _of_equal_compute(log_c: Vector) -> list[NDArray[np.int64]]:
    """Return groups of points, those of the most points first taken, in ascending order of compute."""
    order = np.argsort(log_c)
    free, groups = np.ones(len(order), dtype=bool), []
    while free.any():
        left = order[free]
        ends = np.searchsorted(log_c[left], log_c[left] + np.log(MAX_COMPUTE_RATIO), side="right")
        first = int(np.argmax(ends - np.arange(len(left))))
        if ends[first] - first < MIN_PARABOLA_POINTS:
            break
        groups.append(left[first : ends[first]])
        free[np.isin(order, groups[-1])] = False
    return sorted(groups, key=lambda g: float(log_c[g].mean()))


def _vertex(x: Vector, log_c: Vector, loss: Vector, weights: Vector) -> float:
    """Return ln N of the lowest place of a parabola; NaN if it has none between the points."""
    sampled = weights > 0
    if sampled.sum() < MIN_PARABOLA_POINTS or len(np.unique(x[sampled])) < MIN_PARABOLA_POINTS - 1:
        return np.nan
    centre, root = x[sampled].mean(), np.sqrt(weights)
    of = x - centre
    columns = np.stack([np.ones_like(x), of, of**2, log_c - log_c.mean()], axis=1)
    _, slope, bend, _ = np.linalg.lstsq(columns * root[:, None], loss * root, rcond=1e-9)[0]
    if bend <= 0:
        return np.nan
    at = float(centre - slope / (2 * bend))
    return at if x[sampled].min() < at < x[sampled].max() else np.nan


def _frontier(
    approach: str, of: Callable[[Vector], tuple[Vector, Vector]], n_runs: int, few: str, resamples: int, seed: int
) -> Frontier:
    """Return a frontier, of how often each run counts, with the intervals of resampled runs; refuse too few sizes."""
    C, N = of(np.ones(n_runs))
    if (n := len(np.unique(N))) < MIN_BUDGETS:
        raise RefusedError(f"{approach}: {few.format(n, MIN_BUDGETS)}")

    def slope(C: Vector, N: Vector) -> float:
        return float(np.polyfit(np.log(C), np.log(N), 1)[0])

    random = np.random.default_rng(derive_seed(seed, "frontier", approach))
    counts = (np.bincount(random.integers(0, n_runs, n_runs), minlength=n_runs) for _ in range(resamples))
    drawn = (np.asarray(count, np.float64) for count in counts)
    slopes = [slope(*found) for found in map(of, drawn) if len(np.unique(found[1])) >= MIN_BUDGETS]
    value, remarks = slope(C, N), []
    exponent = Interval(value, np.nan, np.nan)
    if len(slopes) > resamples / 2:
        exponent = Interval.of(value, np.array(slopes))
        if len(slopes) < resamples:
            remarks.append(f"{resamples - len(slopes)} of {resamples} resamples determine no exponent: left out")
    elif resamples:
        remarks.append("most resamples determine no exponent: there is no interval")
    return Frontier(approach, exponent, C, N, tuple(remarks))
