"""What the tests of association would have found: planted features, and correlations that are detectable."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from toposcope.analysis import association_verdict as rule
from toposcope.analysis.adjustment import MIN_RUNS, pairing_p, replicated
from toposcope.analysis.association import (
    COLUMNS,
    PARTIALLED,
    AssociationResult,
    AssociationTask,
    FeatureSeries,
    associate,
)
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Matrix, Vector

POWER_DEGREE, CHECKPOINTS_PER_DEGREE = 6, 8  # of the polynomial in the log of the step that the loss follows

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
    rng = np.random.default_rng(derive_seed(SEED, "planted", len(runs)))
    signals = [_residual(run) for run in runs]
    noises = [_autoregressive(signal, rng) for signal in signals]

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
    curve = chebvander(2 * time / time[-1] - 1, min(POWER_DEGREE, len(time) // CHECKPOINTS_PER_DEGREE))
    basis, _ = np.linalg.qr(np.column_stack([curve, *covariates]))
    residual = loss - basis @ (basis.T @ loss)
    size = float(np.linalg.norm(residual))
    return residual / size if size > MIN_RESIDUAL_SHARE * float(np.linalg.norm(loss)) else np.zeros(len(loss))


def _autoregressive(signal: Vector, rng: np.random.Generator) -> Matrix:
    """Return circular AR(1) series with the autocorrelation of a signal at lag 1, of length 1, shape (f, n)."""
    phi = np.clip(signal[1:] @ signal[:-1], -0.9, 0.9)
    spectrum = np.fft.rfft(rng.standard_normal((N_PLANTED, len(signal))))
    spectrum[:, 0] = 0
    series = np.fft.irfft(spectrum / (1 - phi * np.exp(-2j * np.pi * np.fft.rfftfreq(len(signal)))), len(signal))
    return np.asarray(series / np.linalg.norm(series, axis=1, keepdims=True))


def _detected(runs: Sequence[AssociationTask], planted: Sequence[Matrix], n_features: int) -> NDArray[np.bool_]:
    """Return in which runs the rule finds which features planted in all of them, shape (r, f)."""
    detected = _pass(_associated(runs, planted), n_features)
    candidates = np.flatnonzero(detected.any(axis=0))
    if len(runs) >= MIN_RUNS and len(candidates):
        series = [
            FeatureSeries(run.series.steps, features[candidates]) for run, features in zip(runs, planted, strict=True)
        ]
        others = [series[:i] + series[i + 1 :] for i in range(len(runs))]
        detected[:, candidates] = _pass(_associated(runs, [of.features for of in series], others), n_features)
    return detected


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
    return [associate(task, SEED, resampled=False) for task in tasks]


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
            p = [pairing_p(square, SEED) for square in np.stack(by_run, axis=1)]
            columns[name] = np.tile(p, (len(results), 1))
    verdicts, gaps = rule.verdicts_of({name: values.ravel() for name, values in columns.items()})
    passing = [verdict == BEYOND or gap is rule.RUNS for verdict, gap in zip(verdicts, gaps, strict=True)]
    return np.reshape(passing, tables.shape[:2])
