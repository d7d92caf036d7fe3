"""What wrong decisions cost, where the scaling point is, and how well probabilities are calibrated."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from scipy.special import ndtr

from toposcope.extend import Matrix, Vector, sign_flip
from toposcope_experiments.scaling_decision.prediction import Decisions, Predicted

POWER_FACTOR = 2.80  # standard errors that are found at 5%, two-sided, in 4 of 5 populations: 1.96 + 0.84
MNAT = 1e3  # in a nat
BINS = 5  # of probabilities


def regrets(table: Decisions, found: list[Predicted]) -> Vector:
    """Return each condition's regret in nats, shape (conditions,), the mean over draws.

    It is the mean of the size of the margin over decisions that are wrong, each pair and amount with equal weight.
    """
    cost = np.mean([regret_of(table, each.scale) for each in found], axis=0)
    sums, counts = np.zeros((2, table.n_conditions, int(table.group.max()) + 1))
    np.add.at(sums, (table.condition, table.group), cost)
    np.add.at(counts, (table.condition, table.group), 1.0)
    return np.asarray((sums / counts).mean(axis=1))


def regret_of(table: Decisions, scale: Vector) -> Vector:
    """Return what each decision loses against the better of its two ways."""
    return np.where(scale == (table.margin < 0), 0.0, np.abs(table.margin))


@dataclass(frozen=True)
class Gain:
    """How much less one predictor regrets than another, in nats, by condition."""

    by_condition: Vector

    @property
    def mean(self) -> float:
        """Over conditions."""
        return float(self.by_condition.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return float(self.by_condition.std(ddof=1) / np.sqrt(len(self.by_condition)))

    @property
    def detectable(self) -> float:
        """The gain that would have been found in 4 of 5 populations."""
        return POWER_FACTOR * self.error

    @cached_property
    def p(self) -> float:
        """Two-sided, by flipping signs; 1 where no decision differs."""
        return sign_flip(self.by_condition) if self.by_condition.any() else 1.0

    @property
    def found(self) -> bool:
        """Whether it is a gain beyond chance at 5%."""
        return self.mean > 0 and self.p < 0.05


def scaling_points(table: Decisions, margin: Vector) -> pl.DataFrame:
    """Return where scaling up begins to pay for good, for each run, pair and amount, in ln FLOP.

    Between the last decision to go on and the next, in a line; half a stride beyond the window where no decision is to
    go on, or the last one still is.

    Returns
    -------
    DataFrame
        Columns ``condition``, ``seed``, ``pair``, ``further``, ``log_compute``, ``outside``, ``crossings``.
    """
    rows = table.table.select("condition", "seed", "pair", "further", "log_compute").with_columns(
        pl.Series("value", margin)
    )
    keys = ["condition", "seed", "pair", "further"]
    parts = []
    for key, own in rows.group_by(keys, maintain_order=True):
        at, outside, crossings = crossing(own["log_compute"].to_numpy(), own["value"].to_numpy())
        names = dict(zip(keys, key, strict=True))
        parts.append({**names, "log_compute": at, "outside": outside, "crossings": crossings})
    return pl.DataFrame(parts)


def crossing(log_compute: Vector, margin: Vector) -> tuple[float, bool, int]:
    """Return the last change from going on to scaling up, whether it lies outside, and how often the sign changes."""
    scale = margin < 0
    crossings = int((scale[1:] != scale[:-1]).sum())
    half = (log_compute[1] - log_compute[0]) / 2
    if not scale[-1]:
        return float(log_compute[-1] + half), True, crossings
    if scale.all():
        return float(log_compute[0] - half), True, crossings
    last = int(np.flatnonzero(~scale)[-1])
    fraction = margin[last] / (margin[last] - margin[last + 1])
    return float(log_compute[last] + fraction * (log_compute[last + 1] - log_compute[last])), False, crossings


def calibration(table: Decisions, found: Predicted) -> tuple[float, pl.DataFrame]:
    """Return the Brier score of the probability of scaling up, and how often it was right in bins of it."""
    probability, true = ndtr(-found.margin / np.maximum(found.deviation, 1e-12)), table.margin < 0
    bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    rows = [
        {"stated": float(probability[own].mean()), "seen": float(true[own].mean()), "decisions": int(own.sum())}
        for each in range(BINS)
        if (own := bins == each).any()
    ]
    return float(((probability - true) ** 2).mean()), pl.DataFrame(rows)


def gain(less: Vector, more: Vector) -> Gain:
    """Return what the second set of regrets saves on the first, by condition."""
    return Gain(np.asarray(less - more))


def stack(found: list[Predicted], table: Decisions) -> Matrix:
    """Return the regrets of each draw, shape (draws, conditions)."""
    return np.stack([regrets(table, [each]) for each in found])
