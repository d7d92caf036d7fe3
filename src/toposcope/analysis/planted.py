"""The power of the verdict: how often it finds features planted in the runs (docs/methods/association.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from toposcope.analysis.association import (
    COLUMNS,
    PARTIALLED,
    AssociationTask,
    FeatureSeries,
    associate,
)
from toposcope.analysis.pairing import pairing_p
from toposcope.analysis.ranks import MIN_RESIDUAL_SHARE
from toposcope.analysis.verdict import (
    ADJUSTED,
    BEYOND,
    MIN_POWER,
    NONE,
    PLANTED,
    POWER,
    RUNS,
    TREND,
    UNDETERMINED,
    verdicts_of,
)
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

SEED = 42
FAMILY = ("target", "group", "feature", "block")
"""What the rows of one feature in several runs share; runs are compared within a block."""
N_PLANTED = 50
"""Features planted in each run."""
SIZES = (PLANTED, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Partial correlations that are planted."""
MAX_DEGREE, CHECKPOINTS_PER_DEGREE = 6, 8
"""Of the polynomial that the loss follows, in the logarithm of the step."""


@dataclass(frozen=True, eq=False)
class PlantedRun:
    """What features of one run are measured against.

    Attributes
    ----------
    number : int
        Runs of one table have different ones.
    steps : ndarray, shape (n,), int64
    target : ndarray, shape (n,)
        NaN where the target or the features are not known.
    clocks : mapping of ndarray, shape (n,)
        As of `AssociationTask`.
    scale : ndarray, shape (n,)
        The features' own clock; NaN without one.
    """

    number: int
    steps: NDArray[np.int64]
    target: Vector
    clocks: Mapping[str, Vector]
    scale: Vector

    def residual(self) -> Vector:
        """Return what a smooth curve and the clocks leave of the known losses, of length 1, or 0 if they leave nothing.

        The curve is a polynomial in the logarithm of the step.
        """
        known = np.isfinite(self.target)
        loss, steps = self.target[known], self.steps[known].astype(np.float64)
        time = np.log1p((steps - steps[0]) / (steps[1] - steps[0]))
        degree = min(MAX_DEGREE, len(loss) // CHECKPOINTS_PER_DEGREE)
        clocks = [clock[known] for name, clock in self.clocks.items() if name in PARTIALLED]
        columns = [c for c in (*clocks, self.scale[known]) if np.isfinite(c).all() and np.ptp(c) > 0]
        curve = chebvander(2 * time / time[-1] - 1, degree)
        basis, _ = np.linalg.qr(np.column_stack([curve, *((c - c.mean()) / np.ptp(c) for c in columns)]))
        left = loss - basis @ (basis.T @ loss)
        size = float(np.linalg.norm(left))
        return left / size if size > MIN_RESIDUAL_SHARE * float(np.linalg.norm(loss)) else np.zeros(len(loss))

    def task(self, features: Matrix, others: Sequence[FeatureSeries]) -> AssociationTask:
        """Return the association of features of this run with its target, shape (f, n)."""
        scales = np.tile(self.scale, (len(features), 1)) if np.isfinite(self.scale).any() else np.empty((0, 0))
        return AssociationTask(FeatureSeries(self.steps, features), self.target, self.clocks, others, scales=scales)


def with_power(table: pl.DataFrame, runs: Sequence[PlantedRun]) -> pl.DataFrame:
    """Add the power of each verdict that says there is nothing, and withdraw it where the power is too small.

    Parameters
    ----------
    table : polars.DataFrame
        Of `toposcope.analysis.verdict.with_verdicts`, with ``design``, the place of each row's run in `runs`.
    runs : sequence of PlantedRun

    Returns
    -------
    polars.DataFrame
        With ``power``, how often a planted partial correlation of `PLANTED` is found in this run, and ``detectable``,
        the smallest of `SIZES` found in `MIN_POWER` of cases, both NaN where no verdict rests on them.
    """
    power, detectable = np.full((2, len(table)), np.nan)
    rests = table.select(pl.col("verdict").is_in([TREND, NONE])).to_series().to_numpy()
    defined = table.with_row_index("row").filter(pl.col("rho").is_finite())
    n_rows = dict(defined.group_by("target").len().iter_rows())
    known: dict[tuple[int, ...], tuple[Vector, Vector]] = {}
    families = defined.group_by(FAMILY, maintain_order=True).agg("row", "design")
    for target, rows, design in families.select("target", "row", "design").iter_rows():
        if rests[rows].any():
            key = (n_rows[target], *design)
            if key not in known:
                known[key] = _power([runs[i] for i in design], n_rows[target])
            power[rows], detectable[rows] = known[key]
    power[~rests], detectable[~rests] = np.nan, np.nan
    table = table.with_columns(power=pl.Series(power), detectable=pl.Series(detectable))
    weak = pl.col("power") < MIN_POWER  # NaN is larger than any number
    return table.with_columns(
        verdict=pl.when(weak).then(pl.lit(UNDETERMINED)).otherwise("verdict"),
        untested=pl.when(weak).then(pl.lit(POWER.untested)).otherwise("untested"),
        needs=pl.when(weak).then(pl.lit(POWER.needs)).otherwise("needs"),
    )


def _power(runs: Sequence[PlantedRun], n_rows: int) -> tuple[Vector, Vector]:
    """Return `power` and `detectable` of a feature in some runs, shape (r,)."""
    signals = [run.residual() for run in runs]
    rng = np.random.default_rng(derive_seed(SEED, "planted", len(runs)))
    noises = [_alike(signal, rng) for signal in signals]

    def found(size: float) -> Vector:
        return _found(runs, signals, noises, size, n_rows)

    power, detectable = found(SIZES[0]), np.full(len(runs), np.nan)
    falling = power < MIN_POWER
    detectable[~falling] = SIZES[0]
    for size in reversed(SIZES[1:]):
        if not falling.any():
            break
        falling &= found(size) >= MIN_POWER
        detectable[falling] = size
    return power, detectable


def _alike(signal: Vector, rng: np.random.Generator) -> Matrix:
    """Return series with the autocorrelation of a signal and phases at random, of length 1, shape (f, n)."""
    spectrum = np.abs(np.fft.rfft(signal))
    phases = np.exp(2j * np.pi * rng.uniform(size=(N_PLANTED, len(spectrum))))
    series = np.fft.irfft(spectrum * phases, len(signal))
    return np.asarray(series / np.maximum(np.linalg.norm(series, axis=1, keepdims=True), np.finfo(float).tiny))


def _found(
    runs: Sequence[PlantedRun], signals: Sequence[Vector], noises: Sequence[Matrix], size: float, n_rows: int
) -> Vector:
    """Return the share of features planted in all runs that the rule finds in each of them, shape (r,)."""
    planted = []
    for run, signal, noise in zip(runs, signals, noises, strict=True):
        features = np.full((N_PLANTED, len(run.steps)), np.nan)
        features[:, np.isfinite(run.target)] = size * signal + np.sqrt(1 - size**2) * noise
        planted.append(FeatureSeries(run.steps, features))
    results = [
        associate(run.task(planted[i].features, planted[:i] + planted[i + 1 :]), SEED, resampled=False)
        for i, run in enumerate(runs)
    ]
    values = np.stack([result.table for result in results], axis=1)  # features, runs, columns
    columns = {name: values[:, :, i] for i, name in enumerate(COLUMNS)}
    strengths = zip(*(result.with_own(i) for i, result in enumerate(results)), strict=True)
    for name, pairings in zip(("p_pairing", "p_pairing_differences"), strengths, strict=True):
        p = [pairing_p(square, SEED) for square in np.stack(pairings, axis=1)]
        columns[name] = np.tile(np.array(p)[:, None], len(runs))
    for name, p_of in ADJUSTED.items():  # as the first of so many rows
        columns[name] = np.minimum(1.0, n_rows * columns[p_of])
    columns["n"] = np.tile([np.isfinite(run.target).sum() for run in runs], (N_PLANTED, 1))
    verdicts, gaps = verdicts_of(pl.DataFrame({name: values.ravel() for name, values in columns.items()}))
    found = [v == BEYOND or gap is RUNS for v, gap in zip(verdicts, gaps, strict=True)]
    return np.reshape(found, (N_PLANTED, len(runs))).mean(axis=0)
