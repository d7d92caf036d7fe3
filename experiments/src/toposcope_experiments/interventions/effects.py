"""Effects of pushes on the loss, paired by seed: intervals, exact p-values, and the power of the design."""

from bisect import bisect_left
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, Vector, sign_flip
from toposcope_experiments.interventions.results import (
    ARMS,
    BASE,
    DOWN,
    RANDOM,
    STATISTIC,
    UNDIRECTED,
    UP,
    StatisticRuns,
    finite_mean,
)

MNAT = 1000.0
POWER = 0.8
MAX_EXACT_PAIRS = 14  # of up to this many pairs p is that of all sign flips; of more, Student's
MAX_SEEDS = 10_000
BOTH = "half of up minus down"
DIRECTION_NAMES = {UP: "up", DOWN: "down", UNDIRECTED: ""}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% interval (Student) and two-sided p; NaN where there are too few seeds."""

    mean: float
    low: float
    high: float
    p: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Vector) -> "Estimate":
        """Estimate the mean of one value per seed; NaN is not counted."""
        values = values[np.isfinite(values)]
        n = len(values)
        if n < 2:
            return cls(float(values.mean()) if n else np.nan, np.nan, np.nan, np.nan, np.nan, n)
        from scipy.stats import t as student  # slow to import

        mean, sd = float(values.mean()), float(values.std(ddof=1))
        error = sd / sqrt(n)
        half = error * float(student.ppf(0.975, n - 1))
        if n <= MAX_EXACT_PAIRS:
            p = sign_flip(values)
        else:
            p = float(2 * student.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
        return cls(mean, mean - half, mean + half, p, sd, n)

    @property
    def above(self) -> bool:
        """Whether the mean is significantly above 0."""
        return self.mean > 0 and self.p < LEVEL

    def columns(self, name: str) -> dict[str, float]:
        """Return the mean and the ends of its interval, by the names of their columns."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def directed_effect(runs: StatisticRuns, arm: str, column: str = "loss") -> Vector:
    """Return half of up minus down by seed: the effect of pushing up, in mnat, whatever pushing alone costs."""
    return (runs.values(column, arm, UP) - runs.values(column, arm, DOWN)) / 2 * MNAT


def effect_of_direction(runs: StatisticRuns, arm: str, direction: int, column: str = "loss") -> Vector:
    """Return arm minus base by seed, in mnat."""
    return (runs.values(column, arm, direction) - runs.values(column, BASE)) * MNAT


def beyond_random(runs: StatisticRuns, direction: int) -> Vector:
    """Return what a push does beyond one in a random direction of the same share of the gradient, by seed, in mnat."""
    return effect_of_direction(runs, STATISTIC, direction) - drift(runs)


def drift(runs: StatisticRuns) -> Vector:
    """Return what a push in a random direction or its opposite does to the loss, by seed, in mnat."""
    return (effect_of_direction(runs, RANDOM, UP) + effect_of_direction(runs, RANDOM, DOWN)) / 2


def mean_change(runs: StatisticRuns, arm: str, column: str = "dose") -> Vector:
    """Return half of up minus down of a logarithmic change, by seed."""
    return (runs.values(column, arm, UP) - runs.values(column, arm, DOWN)) / 2


def diverged_p(arm: Vector, base: Vector) -> float:
    """Return the exact two-sided p of more or fewer divergences than in the base runs of the same seeds (McNemar)."""
    more, fewer = int(((arm == 1) & (base == 0)).sum()), int(((arm == 0) & (base == 1)).sum())
    n = more + fewer
    tail = sum(comb(n, k) for k in range(max(more, fewer), n + 1))
    return float(min(1.0, 2 * tail / 2**n))


def effect_rows(runs: StatisticRuns) -> pl.DataFrame:
    """Return the effects of every arm: a row for each direction, and one for both together.

    Losses in mnat, ``effect`` at the end and ``effect_half`` at half of training, each with its 95% interval; ``dose``
    and ``target_dose`` are logarithmic changes of the statistic; of both together they are half of up minus down.
    ``n`` pairs are compared; of ``n_runs`` runs ``n_diverged`` diverged, as did ``n_base_diverged`` of their base.
    """
    rows: list[dict[str, object]] = []
    base = runs.diverged(BASE)
    for arm in ARMS[1:]:
        directions = runs.directions(arm)
        for direction in directions:
            ended = runs.diverged(arm, direction)
            paired = np.isfinite(ended) & np.isfinite(base)
            doses = {name: finite_mean(runs.values(name, arm, direction)) for name in ("dose", "target_dose", "share")}
            rows.append({
                "statistic": runs.statistic, "arm": arm, "direction": DIRECTION_NAMES[direction] or "none",
                **_columns("effect", Estimate.of(effect_of_direction(runs, arm, direction))),
                **_columns("effect_half", Estimate.of(effect_of_direction(runs, arm, direction, "loss_half"))),
                **doses, "n_runs": int(np.isfinite(ended).sum()), "n_diverged": int((ended == 1).sum()),
                "n_base_diverged": int((base[paired] == 1).sum()), "p_diverged": diverged_p(ended, base),
            })  # fmt: skip
        if UP in directions and DOWN in directions:
            doses = {name: finite_mean(mean_change(runs, arm, name)) for name in ("dose", "target_dose")}
            rows.append({
                "statistic": runs.statistic, "arm": arm, "direction": BOTH,
                **_columns("effect", Estimate.of(directed_effect(runs, arm))),
                **_columns("effect_half", Estimate.of(directed_effect(runs, arm, "loss_half"))),
                **doses, "share": None, "n_runs": None, "n_diverged": None, "n_base_diverged": None, "p_diverged": None,
            })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    found = {**estimate.columns(name), f"{name}_p": estimate.p}
    return found | ({"sd": estimate.sd, "n": estimate.n} if name == "effect" else {})


def detectable(sd: float, n: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the mean difference that a two-sided paired t test of n seeds finds with a power."""
    if n < 2 or not np.isfinite(sd):
        return float("nan")
    from scipy.stats import nct
    from scipy.stats import t as student

    critical = float(student.ppf(1 - level / 2, n - 1))
    low, high = 0.0, critical + 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if nct.sf(critical, n - 1, middle) < power else (low, middle)
    return float(sd * high / sqrt(n))


def seeds_needed(sd: float, difference: float, level: float = LEVEL, power: float = POWER) -> int | None:
    """Return how many seeds find a mean difference with a power; None if more than 10,000."""
    counts = range(2, MAX_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda n: detectable(sd, n, level, power) <= abs(difference))
    return counts[place] if difference and place < len(counts) else None
