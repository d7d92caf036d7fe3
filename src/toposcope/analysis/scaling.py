"""Final values against the number of parameters: power laws and rank correlations (docs/methods/scaling.md)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import polars as pl

from toposcope.analysis.permutations import MAX_ENUMERATED_ORDERS, orders
from toposcope.analysis.ranks import correlate, ranks, two_sided
from toposcope.analysis.trajectory import Trajectory
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Vector

RESAMPLES = 1000
MIN_SIZES_WITH_OFFSET = 4  # one more than the three parameters of a power law with an offset
EXPONENTS = (0.01, 3.0)  # smallest and largest absolute exponent of a power law with an offset
N_EXPONENTS = 100
TOLERANCE = 1e-9


@dataclass(frozen=True)
class SizeLaw:
    """f(N) = factor N^exponent, fitted by least squares of log f on log N, and a rank correlation."""

    n: int  # runs
    n_sizes: int  # different sizes among them
    factor: float
    exponent: float
    r_squared: float  # of log f
    low: float  # 95% percentile interval of the exponent over resampled runs; NaN below 4 runs
    high: float
    # c and b of a N^b + c, least squares of f; NaN with fewer than 4 sizes, and where |b| is not between 0.01 and 3
    offset: float
    offset_exponent: float
    rho: float  # Spearman's correlation with N; NaN for equal values
    p_exact: float  # two-sided: share of all orders with a correlation as large; beyond 8 runs Student's
    min_p: float  # `p_exact` of values in perfect order: the lowest that these sizes allow


def fit_size_law(n_parameters: Vector, values: Vector, seed: int) -> SizeLaw | None:
    """Fit a power law to one value of each run."""
    sizes = np.unique(n_parameters)
    if len(sizes) < 3 or not (values > 0).all():
        return None
    x, y = np.log(n_parameters), np.log(values)
    exponent, intercept = np.polyfit(x, y, 1)
    total = float(((y - y.mean()) ** 2).sum())
    residual = float(((y - intercept - exponent * x) ** 2).sum())
    r_squared = 1 - residual / total if total > 0 else np.nan
    low, high = _interval(x, y, seed) if len(x) >= 4 else (np.nan, np.nan)
    offset, offset_exponent = _fit_with_offset(x, values) if len(sizes) >= MIN_SIZES_WITH_OFFSET else (np.nan, np.nan)
    rho, p_exact = rank_correlation(n_parameters, values)
    return SizeLaw(
        n=len(x),
        n_sizes=len(sizes),
        factor=float(np.exp(intercept)),
        exponent=float(exponent),
        r_squared=r_squared,
        low=low,
        high=high,
        offset=offset,
        offset_exponent=offset_exponent,
        rho=rho,
        p_exact=p_exact,
        min_p=rank_correlation(np.sort(n_parameters), np.arange(len(x), dtype=np.float64))[1],
    )


def rank_correlation(n_parameters: Vector, values: Vector) -> tuple[float, float]:
    """Return Spearman's correlation and its two-sided permutation p.

    All n! orders of the values are enumerated for up to 8 runs; for more, Student's approximation is used. For five
    sizes it would give p = .037 at a correlation of .9, where the exact p is 10/120 = .083: of the 120 orders of five
    values only the two perfect ones have p below .05 (2/120 = .017), and four sizes allow no p below 2/24 = .083.

    Parameters
    ----------
    n_parameters, values : ndarray, shape (n,)
        At least 3.

    Returns
    -------
    tuple of float
        NaN where either is constant.
    """
    x, y = ranks(n_parameters), ranks(values)
    rho = float(correlate(x[None], y)[0])
    n = len(x)
    if n > MAX_ENUMERATED_ORDERS or np.isnan(rho):
        return rho, float(two_sided(np.array(rho), np.array(n - 2.0)))
    return rho, float((np.abs(y[orders(n)] @ x) >= abs(float(x @ y)) - TOLERANCE).mean())


def _interval(x: Vector, y: Vector, seed: int) -> tuple[float, float]:
    draws = np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))
    a, b = x[draws], y[draws]
    a = a - a.mean(axis=1, keepdims=True)
    squares = (a**2).sum(axis=1)
    usable = squares > 0
    low, high = np.percentile((a * b).sum(axis=1)[usable] / squares[usable], [2.5, 97.5])
    return float(low), float(high)


def _fit_with_offset(x: Vector, values: Vector) -> tuple[float, float]:
    """Return c and b of a N^b + c by variable projection: a and c are linear, b is searched."""
    from scipy.optimize import minimize_scalar

    if not np.ptp(values) > 0:
        return np.nan, np.nan
    x = x - x.mean()  # a takes the unit of N; b and c stay
    grid = np.geomspace(*EXPONENTS, N_EXPONENTS)
    residuals = np.stack([_residual(sign * grid, x, values) for sign in (-1, 1)])
    side, place = np.unravel_index(int(residuals.argmin()), residuals.shape)
    if place in (0, N_EXPONENTS - 1):
        return np.nan, np.nan
    bounds = np.sort((2 * int(side) - 1) * grid[[place - 1, place + 1]])
    best = minimize_scalar(
        lambda b: float(_residual(np.array([b]), x, values)[0]),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    ).x
    return float(np.polyfit(np.exp(best * x), values, 1)[1]), float(best)


def _residual(b: Vector, x: Vector, values: Vector) -> Vector:
    """Return the squared residuals, shape (k,), of the best lines in exp(b x)."""
    z = np.exp(b[:, None] * x)
    z = z - z.mean(axis=1, keepdims=True)
    y = values - values.mean()
    slope = (z @ y) / (z**2).sum(axis=1)
    return np.asarray(((y - slope[:, None] * z) ** 2).sum(axis=1))


def sizes_of_complete(trajectories: Sequence[Trajectory], runs: pl.DataFrame) -> dict[str, int]:
    """Return the parameters of complete runs whose last checkpoint was measured, by run."""
    last = {t.run: int(t.steps[-1]) for t in trajectories}
    complete = runs.filter(status="complete").select("run", "n_parameters", "last_step").drop_nulls()
    return {run: n for run, n, step in complete.iter_rows() if last.get(run) == step}


def scaling_table(trajectories: Sequence[Trajectory], runs: pl.DataFrame) -> pl.DataFrame:
    """Fit final values of complete runs against their size.

    Parameters
    ----------
    trajectories : sequence of Trajectory
    runs : polars.DataFrame
        `Study.runs`.

    Returns
    -------
    polars.DataFrame
        ``quantity, n, n_sizes, factor, exponent, r_squared, low, high, offset, offset_exponent, rho, p_exact,
        min_p``.
    """
    sizes = sizes_of_complete(trajectories, runs)
    finals: dict[str, list[tuple[float, float]]] = {}
    for trajectory in trajectories:
        if trajectory.run in sizes:
            for name, values in trajectory.named_values().items():
                if np.isfinite(values[-1]):
                    finals.setdefault(name, []).append((float(sizes[trajectory.run]), float(values[-1])))
    rows = []
    for name, pairs in finals.items():
        n_parameters, values = np.array(pairs).T
        law = fit_size_law(n_parameters, values, derive_seed(SEED, "scaling", name))
        if law is not None:
            rows.append({"quantity": name, **asdict(law)})
    counts = {"quantity": pl.String, "n": pl.Int64, "n_sizes": pl.Int64}
    names = [field.name for field in fields(SizeLaw) if field.name not in counts]
    return pl.DataFrame(rows, schema={**counts, **dict.fromkeys(names, pl.Float64)})
