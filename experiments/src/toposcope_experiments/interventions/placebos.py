"""A statistic's effect on the loss against that of each placebo: at equal dose, and at equal change of the placebo."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, Vector
from toposcope_experiments.interventions.effects import (
    DIRECTION_NAMES,
    Estimate,
    directed_effect,
    effect_of_direction,
    mean_change,
)
from toposcope_experiments.interventions.results import (
    BASE,
    CHAOS,
    DOWN,
    OWN_DOSES,
    PLACEBOS,
    RANDOM,
    STATISTIC,
    UP,
    StatisticRuns,
)

AT_DOSE, AS_FAR, AT_SHARE, AS_IS = "equal dose", "as far as it reached", "equal share of the gradient", "as it is"
MIN_DOSE_SHARE = 0.5  # a placebo that reaches less of the dose is compared as far as it reached
MIN_OWN_CHANGE = 0.01  # logarithmic change of its own quantity below which a placebo did not move it
MIN_EXPLAINED = 0.5  # share of the effect above which that of a placebo has to be, significantly, to explain it
MUCH_MORE = 1.25  # times the effect: a placebo that does significantly more is not beaten


@dataclass(frozen=True)
class PlaceboComparison:
    """A statistic's effect less that of one placebo; gains are positive in the direction of the statistic's effect."""

    arm: str
    basis: str
    reached: float  # dose of the placebo over that of the statistic
    placebo: Estimate  # effect of the placebo, in mnat, on this basis
    left: Estimate  # effect of the statistic less that of the placebo
    explained: float  # the placebo's effect over the statistic's
    does_half: bool  # over half of it, significantly; what missed the dose, at equal share of the gradient
    does_much_more: bool  # over 1.25 of the effect, significantly
    own: Estimate | None  # the same difference at equal change of the placebo's own quantity

    @property
    def beaten(self) -> bool:
        """Whether the statistic does more than the placebo."""
        return self.left.above or (self.own is not None and self.own.above and not self.does_much_more)

    @property
    def explains(self) -> bool:
        """Whether the placebo does at least half, and more than a loss that follows the statistic alone allows."""
        does_more = self.left.mean < 0 and self.left.p < LEVEL
        return self.does_half and not self.beaten and (self.own is None or does_more)

    @property
    def p(self) -> float:
        """The two-sided p of the difference that counts; 1 where the difference has the other sign."""
        found = [self.left, *([self.own] if self.own and not self.does_much_more else [])]
        return min((each.p if each.mean > 0 else 1.0) for each in found)

    def row(self) -> dict[str, Any]:
        """Return the numbers by name."""
        own = self.own
        return {
            "placebo": self.arm, "basis": self.basis, "reached": self.reached, "gain": self.placebo.mean,
            "explained": self.explained, "left": self.left.mean, "left_low": self.left.low,
            "left_high": self.left.high, "left_p": self.left.p, "left_sd": self.left.sd, "n": self.left.n,
            "own_left": own.mean if own else None, "own_low": own.low if own else None,
            "own_high": own.high if own else None, "own_p": own.p if own else None,
            "p": self.p, "outcome": self.outcome,
        }  # fmt: skip

    @property
    def outcome(self) -> str:
        """Whether the placebo is beaten, explains the effect, or neither can be told."""
        return "beaten" if self.beaten else "explains it" if self.explains else "cannot be told"


COMPARED: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("statistic", "placebo", "basis"), pl.String),
    **dict.fromkeys(("reached", "gain", "explained", "left", "left_low", "left_high", "left_p", "left_sd"), pl.Float64),
    "n": pl.Int64,
    **dict.fromkeys(("own_left", "own_low", "own_high", "own_p", "p"), pl.Float64),
    "outcome": pl.String,
}


def is_directed(runs: StatisticRuns, arm: str) -> bool:
    """Return whether an arm was pushed both up and down."""
    return (arm, UP) in runs and (arm, DOWN) in runs


def compare_placebos(runs: StatisticRuns) -> list[PlaceboComparison]:
    """Compare a statistic that was pushed up and down with every placebo that has two seeds in common with it."""
    effect = directed_effect(runs, STATISTIC)
    known = effect[np.isfinite(effect)]
    sign = -1.0 if len(known) and known.mean() < 0 else 1.0
    found: list[PlaceboComparison | None] = []
    for arm in PLACEBOS:
        if is_directed(runs, arm):
            found.append(_directed(runs, arm, sign * effect, sign))
        else:
            found += [_undirected(runs, arm, direction, sign * effect) for direction in runs.directions(arm)]
    return [each for each in found if each is not None]


def _directed(runs: StatisticRuns, arm: str, gain: Vector, sign: float) -> PlaceboComparison | None:
    """Compare with a placebo that was pushed up and down, pair by pair of the same seed."""
    placebo = sign * directed_effect(runs, arm)
    dose, of_placebo = mean_change(runs, STATISTIC), mean_change(runs, arm)
    gain, placebo, dose, of_placebo = _of_common_seeds(gain, placebo, dose, of_placebo)
    if len(gain) < 2:
        return None
    reached = of_placebo.mean() / dose.mean() if dose.mean() else np.nan
    if arm == RANDOM or not reached >= MIN_DOSE_SHARE:
        ratio = _share_ratio(runs, arm)
        basis = AT_SHARE if arm == RANDOM or ratio > 1 else AS_FAR
        scaled, explaining = placebo * max(1.0, ratio), placebo * ratio
    else:
        basis, scaled = AT_DOSE, _rescaled(placebo, dose, of_placebo)
        explaining = scaled
    own = _at_equal_own_change(runs, arm, sign)
    return _compared(arm, basis, float(reached), gain, scaled, own, explaining)


def _undirected(runs: StatisticRuns, arm: str, direction: int, gain: Vector) -> PlaceboComparison | None:
    """Compare with a placebo of no direction: its effect, in whichever direction is worse for the statistic."""
    effect = effect_of_direction(runs, arm, direction)
    gain, effect = _of_common_seeds(gain, effect)
    if len(gain) < 2:
        return None
    factor = 1.0 if arm == CHAOS else max(1.0, _share_ratio(runs, arm))
    worse = effect * (-1.0 if effect.mean() < 0 else 1.0) * factor
    return _compared(arm, AS_IS if arm == CHAOS else AT_SHARE, np.nan, gain, worse, None, worse)


def _compared(
    arm: str, basis: str, reached: float, gain: Vector, placebo: Vector, own: Estimate | None, explaining: Vector
) -> PlaceboComparison:
    mean = gain.mean()
    return PlaceboComparison(
        arm,
        basis,
        reached,
        Estimate.of(placebo),
        Estimate.of(gain - placebo),
        float(placebo.mean() / mean) if mean else np.nan,
        Estimate.of(explaining - MIN_EXPLAINED * gain).above,
        Estimate.of(placebo - MUCH_MORE * gain).above,
        own,
    )


def _at_equal_own_change(runs: StatisticRuns, arm: str, sign: float) -> Estimate | None:
    """Return the effect left at equal change of the placebo's own quantity; None where that is not known."""
    column = OWN_DOSES.get(arm)
    if column is None:
        return None
    gain, placebo = sign * directed_effect(runs, STATISTIC), sign * directed_effect(runs, arm)
    own, of_placebo = mean_change(runs, STATISTIC, column), mean_change(runs, arm, column)
    gain, placebo, own, of_placebo = _of_common_seeds(gain, placebo, own, of_placebo)
    moved = Estimate.of(of_placebo)
    if not moved.p < LEVEL or abs(moved.mean) < MIN_OWN_CHANGE:
        return None
    return Estimate.of(gain - _rescaled(placebo, own, of_placebo))


def _rescaled(placebo: Vector, dose: Vector, of_placebo: Vector) -> Vector:
    """Return a placebo's effect at the mean dose of the statistic.

    The ratio of the doses is estimated from the same seeds: its error is carried by each seed's part in it (the delta
    method), which has mean 0.
    """
    ratio = dose.mean() / of_placebo.mean()
    return np.asarray(ratio * placebo + placebo.mean() * (dose - ratio * of_placebo) / of_placebo.mean())


def _share_ratio(runs: StatisticRuns, arm: str) -> float:
    """Return the statistic's share of the gradient over the placebo's; 1 where it is not known."""

    def mean_share(of: str) -> float:
        shares = np.concatenate([runs.values("share", of, direction) for direction in DIRECTION_NAMES])
        known = shares[np.isfinite(shares)]
        return float(known.mean()) if len(known) else np.nan

    ratio = mean_share(STATISTIC) / (mean_share(arm) or np.nan)
    return float(ratio) if np.isfinite(ratio) else 1.0


def _of_common_seeds(*values: Vector) -> tuple[Vector, ...]:
    known = np.isfinite(np.array(values)).all(axis=0)
    return tuple(each[known] for each in values)


def lost_to_divergence(runs: StatisticRuns, arm: str) -> float:
    """Return the share of the pairs of an arm with its base that are lost since a run diverged."""
    lost = total = 0
    base = runs.diverged(BASE)
    for direction in runs.directions(arm):
        ended = runs.diverged(arm, direction)
        there = np.isfinite(ended) & np.isfinite(base)
        total, lost = total + int(there.sum()), lost + int(((ended == 1) | (base == 1))[there].sum())
    return lost / total if total else 0.0
