"""What the tests of association would have found: planted features, and correlations that are detectable."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from toposcope.analysis import association_verdict as rule
from toposcope.analysis import tuning
from toposcope.analysis.adjustment import MIN_RUNS, pairing_p, replicated
from toposcope.analysis.association import (
    COLUMNS,
    PARTIALLED,
    AssociationResult,
    AssociationTask,
    FeatureSeries,
    associate,
)
from toposcope.analysis.permutations import (
    MAX_ENUMERATED_ORDERS,
    MAX_LAST,
    MIN_FREEDOM,
    TOLERANCE,
    Scale,
    draw_permutations,
    n_orders,
    orders,
    scores,
)
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

N_PLANTED = 32  # features planted in each run
SIZES = (rule.PLANTED, 0.6, 0.75, 0.9)
"""Partial correlations that are planted."""


def with_power(table: pl.DataFrame, designs: Sequence[AssociationTask]) -> pl.DataFrame:
    """Add the power of each verdict that says there is nothing, and withdraw it where the power is too small."""
    columns = {column.name: column for column in table.get_columns()}
    power, detectable = np.full((2, len(table)), np.nan)
    rests = np.array([verdict in (TREND, NONE) for verdict in columns["verdict"]], dtype=bool)
    families: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    keys = zip(*(columns[name] for name in rule.FAMILY), strict=True)
    for row, (family, rho, design) in enumerate(zip(keys, columns["rho"], columns["design"], strict=True)):
        if np.isfinite(rho):
            families.setdefault(family, []).append((row, design))
    n_features = Counter(target for target, *_ in families)
    known: dict[tuple[int, ...], tuple[Vector, Vector]] = {}
    for (target, *_), members in families.items():
        rows, runs = map(list, zip(*members, strict=True))
        if rests[rows].any():
            key = (n_features[target], *runs)
            if key not in known:
                known[key] = _power([designs[i] for i in runs], n_features[target])
            power[rows], detectable[rows] = known[key]
    power[~rests], detectable[~rests] = np.nan, np.nan
    withdrawn = {"verdict": UNDETERMINED, "untested": rule.POWER.untested, "needs": rule.POWER.needs}
    weak = np.flatnonzero(power < rule.MIN_POWER)
    changed = {name: columns[name].scatter(weak, value) for name, value in withdrawn.items()}
    del columns["block"], columns["design"]
    return pl.DataFrame(columns | changed | {"power": power, "detectable": detectable})


def _power(runs: Sequence[AssociationTask], n_features: int) -> tuple[Vector, Vector]:
    """Return `power` and `detectable` in each run of one of so many features, shape (r,)."""
    rng = np.random.default_rng(derive_seed(tuning.SEED, "planted", len(runs)))
    signals = [_residual(run) for run in runs]
    noises = [_alike(signal, rng) for signal in signals]

    def share_detected(*sizes: float) -> Matrix:
        planted = [
            np.concatenate([size * signal + np.sqrt(1 - size**2) * noise for size in sizes])
            for signal, noise in zip(signals, noises, strict=True)
        ]
        return np.asarray(_detected(runs, planted, n_features).reshape(len(runs), len(sizes), -1).mean(axis=2).T)

    power = share_detected(*SIZES[: 1 if len(runs) >= MIN_RUNS else None])  # all at once where that costs little
    if len(power) < len(SIZES) and (power < rule.MIN_POWER).any():
        power = np.concatenate([power, share_detected(*SIZES[1:])])
    enough = power >= rule.MIN_POWER
    return power[0], np.where(enough.any(axis=0), np.array(SIZES)[enough.argmax(axis=0)], np.nan)


def _residual(run: AssociationTask) -> Vector:
    """Return what a polynomial in log step and the covariates leave of the losses, of length 1, or 0 if nothing."""
    steps, loss = run.series.steps, run.target
    time = np.log1p((steps - steps[0]) / (steps[1] - steps[0]))
    known = [covariate for name, covariate in run.covariates.items() if name in PARTIALLED] + [*run.scales]
    covariates = [(covariate - covariate.mean()) / np.ptp(covariate) for covariate in known if np.ptp(covariate) > 0]
    curve = chebvander(2 * time / time[-1] - 1, min(tuning.POWER_DEGREE, len(time) // tuning.CHECKPOINTS_PER_DEGREE))
    basis, _ = np.linalg.qr(np.column_stack([curve, *covariates]))
    left = loss - basis @ (basis.T @ loss)
    size = float(np.linalg.norm(left))
    return left / size if size > MIN_RESIDUAL_SHARE * float(np.linalg.norm(loss)) else np.zeros(len(loss))


def _alike(signal: Vector, rng: np.random.Generator) -> Matrix:
    """Return circular AR(1) series with the autocorrelation of a signal at lag 1, of length 1, shape (f, n)."""
    phi = np.clip(signal[1:] @ signal[:-1], -0.9, 0.9)
    spectrum = np.fft.rfft(rng.standard_normal((N_PLANTED, len(signal))))
    spectrum[:, 0] = 0
    series = np.fft.irfft(spectrum / (1 - phi * np.exp(-2j * np.pi * np.fft.rfftfreq(len(signal)))), len(signal))
    return np.asarray(series / np.linalg.norm(series, axis=1, keepdims=True))


def _detected(runs: Sequence[AssociationTask], planted: Sequence[Matrix], n_features: int) -> NDArray[np.bool_]:
    """Return in which runs the rule finds which features planted in all of them, shape (r, f)."""
    found = _pass(_associated(runs, planted), n_features)
    candidates = np.flatnonzero(found.any(axis=0))
    if len(runs) >= MIN_RUNS and len(candidates):
        series = [
            FeatureSeries(run.series.steps, features[candidates]) for run, features in zip(runs, planted, strict=True)
        ]
        others = [series[:i] + series[i + 1 :] for i in range(len(runs))]
        found[:, candidates] = _pass(_associated(runs, [of.features for of in series], others), n_features)
    return found


def _associated(
    runs: Sequence[AssociationTask], planted: Sequence[Matrix], others: Sequence[Sequence[FeatureSeries]] = ()
) -> list[AssociationResult]:
    """Return the associations of each run's features, compared with others if there are any."""
    tasks = [
        replace(
            run,
            series=FeatureSeries(run.series.steps, features),
            scales=run.scales.repeat(len(features), 0),
            others=others[i] if others else (),
        )
        for i, (run, features) in enumerate(zip(runs, planted, strict=True))
    ]
    return [associate(task, tuning.SEED, resampled=False) for task in tasks]


def _pass(results: Sequence[AssociationResult], n_features: int) -> NDArray[np.bool_]:
    """Return which features pass every test, or every one but the comparison with other runs if that was not made."""
    tables = np.stack([result.table for result in results])
    columns: dict[str, Matrix] = dict(zip(COLUMNS, np.moveaxis(tables, 2, 0), strict=True))
    for name, p_of in rule.ADJUSTED.items():  # as the first of so many features
        columns[name] = np.fmax(columns[p_of], np.minimum(1.0, n_features * replicated(columns[p_of].T)))
    columns["n"] = np.stack([result.n for result in results])
    columns["p_pairing"] = columns["p_pairing_differences"] = np.full(tables.shape[:2], np.nan)
    if results[0].pairings.size:
        squares = zip(*(result.with_own(i) for i, result in enumerate(results)), strict=True)
        for name, by_run in zip(("p_pairing", "p_pairing_differences"), squares, strict=True):
            p = [pairing_p(square, tuning.SEED) for square in np.stack(by_run, axis=1)]
            columns[name] = np.tile(p, (len(results), 1))
    verdicts, gaps = rule.verdicts_of({name: values.ravel() for name, values in columns.items()})
    passing = [verdict == BEYOND or gap is rule.RUNS for verdict, gap in zip(verdicts, gaps, strict=True)]
    return np.reshape(passing, tables.shape[:2])


POWER = 0.8
N_SAMPLES = 2000
N_NULL_SAMPLES = 10  # samples whose permutations give the critical value, where there are controls
MIN_PERMUTATIONS = 20_000
BISECTIONS = 9
MAX_CORRELATION = 0.9999


def detectable_correlation(strata: Indices, n_terms: int, level: float) -> float:
    """Return the rank correlation, the same at all steps, that the test across runs detects with probability .8."""
    return _detectable(tuple(strata.tolist()), n_terms, level)


@lru_cache(64)
def _detectable(places: tuple[int, ...], n_terms: int, level: float) -> float:
    strata, n = np.array(places, dtype=np.int64), len(places)
    if n - len(np.unique(strata)) - n_terms - 1 < MIN_FREEDOM or level * min(n_orders(strata), MAX_LAST) < 1:
        return math.nan
    rng = np.random.default_rng(derive_seed(tuning.SEED, "power", n, n_terms))
    x, noise = rng.standard_normal((2, N_SAMPLES, n))
    controls = rng.standard_normal((N_SAMPLES, n_terms, n))
    scales: tuple[Scale, ...] = ("ranks", "values") if n_terms else ("ranks",)
    critical = {scale: _critical_value(strata, n_terms, level, scale) for scale in scales}
    bases = {scale: _bases(controls, strata, scale) for scale in scales}
    left = {scale: _residuals(x, bases[scale], strata, scale) for scale in scales}

    def power(r: float) -> float:
        y = r * x + math.sqrt(1 - r * r) * noise
        rho = {scale: np.vecdot(left[scale], _residuals(y, bases[scale], strata, scale)) for scale in scales}
        return float(np.all([np.abs(rho[scale]) >= critical[scale] for scale in scales], axis=0).mean())

    low, high = 0.0, MAX_CORRELATION
    if power(high) < POWER:
        return math.nan
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return 6 / math.pi * math.asin(high / 2)  # Spearman's correlation of normal variables with Pearson's


def _critical_value(strata: Indices, n_terms: int, level: float, scale: Scale) -> float:
    """Return the absolute correlation that at most the share `level` of permutations reaches; infinite if none is."""
    n = len(strata)
    count = max(MIN_PERMUTATIONS, math.ceil(20 / level / N_NULL_SAMPLES))
    seed = derive_seed(tuning.SEED, "critical value", n, n_terms)
    rng = np.random.default_rng(seed)
    samples = N_NULL_SAMPLES if n_terms else 1  # without controls all samples without ties have the same permutations
    values = []
    if n <= MAX_ENUMERATED_ORDERS and not strata.any():
        permutations = orders(n)
    else:
        permutations = draw_permutations(strata, count * N_NULL_SAMPLES // samples, seed)
    for _ in range(samples):
        x, y = rng.standard_normal((2, 1, n))
        bases = _bases(rng.standard_normal((1, n_terms, n)), strata, scale)
        left, moved = _residuals(x, bases, strata, scale)[0], scores(y[0], strata, scale)[permutations]
        squares = (moved**2).sum(axis=1) - ((moved @ bases[0]) ** 2).sum(axis=1)
        values.append(np.abs(moved @ left) / np.sqrt(np.maximum(squares, 1e-12)))
    pooled = np.sort(np.concatenate(values))[::-1]
    reached = int(level * len(pooled))
    if not reached:
        return math.inf
    # Equal values count together: one that more than the share `level` reaches is no critical value.
    above = pooled[:reached][pooled[:reached] > pooled[reached] + TOLERANCE]
    return float(above[-1]) - TOLERANCE if len(above) else math.inf


def _bases(controls: NDArray[np.float64], strata: Indices, scale: Scale) -> NDArray[np.float64]:
    """Return orthonormal bases of the scores of controls, shape (s, n, k)."""
    return np.asarray(np.linalg.qr(scores(controls, strata, scale).swapaxes(1, 2))[0])


def _residuals(values: Matrix, bases: NDArray[np.float64], strata: Indices, scale: Scale) -> Matrix:
    """Return scores less what the controls explain, each sample of length 1, shape (s, n)."""
    x = scores(values, strata, scale)
    x = x - (bases @ (bases.swapaxes(1, 2) @ x[:, :, None]))[:, :, 0]
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
