"""What the tests of association would have found: planted features, and correlations that are detectable."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import association_verdict as rule
from toposcope.analysis.adjustment import MIN_RUNS, own_p, pairing_p, replicated
from toposcope.analysis.association import COLUMNS, AssociationResult, AssociationTask, FeatureSeries, associate
from toposcope.analysis.given_covariates import covariate_basis, noise_given
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Matrix, Vector

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
    signals, noises = zip(*(_signal_and_noise(run, rng) for run in runs), strict=True)

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


def _signal_and_noise(run: AssociationTask, rng: np.random.Generator) -> tuple[Vector, Matrix]:
    """Return what the covariates leave of the losses, and of noise like it, shape (f, n); all of length 1, or 0."""
    scale = run.scales[0] if np.isfinite(run.scales).any() else None
    basis = covariate_basis(run.series.steps, run.covariates, scale)
    drawn = noise_given(run.target, basis).colour(rng.standard_normal((len(run.target), N_PLANTED)))
    left = np.column_stack([run.target, drawn])
    left -= basis @ (basis.T @ left)
    sizes = np.linalg.norm(left, axis=0)
    is_left = sizes > MIN_RESIDUAL_SHARE * np.linalg.norm(np.column_stack([run.target, drawn]), axis=0)
    left = np.divide(left, sizes, out=np.zeros(left.shape), where=is_left)
    return left[:, 0], left[:, 1:].T


def _detected(runs: Sequence[AssociationTask], planted: Sequence[Matrix], n_features: int) -> NDArray[np.bool_]:
    """Return in which runs the rule finds which features planted in all of them, shape (r, f)."""
    detected = _pass(_associated(runs, planted), n_features)
    candidates = np.flatnonzero(detected.any(axis=0))
    if len(runs) >= MIN_RUNS and len(candidates):
        series = [
            FeatureSeries(run.series.steps, features[candidates], covariate_basis(run.series.steps, run.covariates))
            for run, features in zip(runs, planted, strict=True)
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
    # as the first of so many features
    p, rho = (columns[name].T.copy() for name in rule.ADJUSTED["p_given_all_adjusted"])
    columns["p_given_all_adjusted"] = np.fmax(own_p(p, rho), n_features * replicated(p)[:, None]).T
    columns["n"] = np.stack([result.n for result in results])
    columns["p_pairing"] = np.full(tables.shape[:2], np.nan)
    if results[0].pairings.size:
        squares = np.stack([np.insert(result.pairings, i, 0.0, axis=1) for i, result in enumerate(results)], axis=1)
        columns["p_pairing"] = np.tile([pairing_p(square, SEED) for square in squares], (len(results), 1))
    verdicts, gaps = rule.verdicts_of({name: values.ravel() for name, values in columns.items()})
    passing = [verdict == BEYOND or gap is rule.RUNS for verdict, gap in zip(verdicts, gaps, strict=True)]
    return np.reshape(passing, tables.shape[:2])
