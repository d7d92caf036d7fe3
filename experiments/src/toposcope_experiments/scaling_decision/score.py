"""What wrong decisions cost, where the scaling point is, and how well probabilities are calibrated."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtr

from toposcope.extend import LEVEL, Matrix, Vector, sign_flip
from toposcope_experiments.scaling_decision.prediction import Decided, Predicted

POWER_FACTOR = 2.80  # standard errors that are found at 5%, two-sided, in 4 of 5 populations: 1.96 + 0.84
BINS = 5  # of probabilities


def regret_of(margin: Decided, scale: NDArray[np.bool_]) -> Vector:
    """Return each condition's regret in nats: the mean size of the margin where a decision is wrong, else 0."""
    return np.asarray(np.where(scale == (margin < 0), 0.0, np.abs(margin)).mean(axis=(1, 2, 3)))


def regrets(margin: Decided, found: Sequence[Predicted]) -> Matrix:
    """Return the regrets of each draw of a predictor, shape (draws, conditions)."""
    return np.stack([regret_of(margin, each.scale) for each in found])


@dataclass(frozen=True, eq=False)
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
        """Whether it is a gain beyond chance."""
        return self.mean > 0 and self.p < LEVEL


class ScalingPoint(NamedTuple):
    """Where scaling up begins to pay for good."""

    log_compute: float
    outside: bool  # of the window: then half a stride beyond it
    crossings: int  # changes of sign in all


def scaling_point(log_compute: Vector, margin: Vector) -> ScalingPoint:
    """Return the last change from going on to scaling up, in a line between two decisions.

    Parameters
    ----------
    log_compute, margin : ndarray, shape (points,)
        Ascending; in nats.
    """
    scale = margin < 0
    crossings = int((scale[1:] != scale[:-1]).sum())
    half = (log_compute[1] - log_compute[0]) / 2
    if not scale[-1]:
        return ScalingPoint(float(log_compute[-1] + half), True, crossings)
    if scale.all():
        return ScalingPoint(float(log_compute[0] - half), True, crossings)
    last = int(np.flatnonzero(~scale)[-1])
    share = margin[last] / (margin[last] - margin[last + 1])
    at = log_compute[last] + share * (log_compute[last + 1] - log_compute[last])
    return ScalingPoint(float(at), False, crossings)


def scaling_points(log_compute: Decided, margin: Decided) -> list[ScalingPoint]:
    """Return those of each condition, seed and group."""
    rows = zip(log_compute.reshape(-1, margin.shape[-1]), margin.reshape(-1, margin.shape[-1]), strict=True)
    return [scaling_point(*row) for row in rows]


def points_as_said(log_compute: Decided, found: Predicted) -> Vector:
    """Return the ln compute of each scaling point of a predictor; half way between two decisions without margins."""
    margin = np.where(found.scale, -1.0, 1.0) if found.margin is None else found.margin
    return np.array([each.log_compute for each in scaling_points(log_compute, margin)])


def probabilities(found: Predicted) -> Decided:
    """Return the probability that scaling up is better."""
    assert found.margin is not None
    assert found.deviation is not None
    return np.asarray(ndtr(-found.margin / np.maximum(found.deviation, 1e-12)))


def calibration(margin: Decided, found: Predicted) -> pl.DataFrame:
    """Return how often scaling up was better, in bins of the stated probability.

    Returns
    -------
    DataFrame
        Columns ``stated``, ``seen``, ``decisions``; of each bin that has any.
    """
    probability, true = probabilities(found), margin < 0
    bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    rows = [
        {"stated": probability[own].mean(), "seen": true[own].mean(), "decisions": int(own.sum())}
        for own in (bins == each for each in range(BINS))
        if own.any()
    ]
    return pl.DataFrame(rows)
