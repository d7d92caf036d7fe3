"""``s1_anneal``, ``annealing`` and ``cooldown``: laws with a gain from a falling learning rate.

L0 + A S1^-a - c G(t), where G is what the falling rate has gained by step t. The coefficient c hardly shows
until the learning rate has fallen, and is then confused with the exponent. So it is that of sibling runs, or a prior,
until half of the run and half of the decay were seen; from then on it is fitted, shrunk towards the prior.

Without siblings the prior is that of language models, as long as the run falls like one; else it is a share of the
run's own slope -dL/d ln S1, to which the gain is roughly proportional whatever is learned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from toposcope.forecasting.forecaster import LoggedRun, RefusedError
from toposcope.forecasting.forecasters.baseline_laws import (
    LATE_SHARE,
    S1,
    FittedLossCurve,
    LawForecaster,
    Problem,
    present_slope,
)
from toposcope.forecasting.forecasters.power_law_fit import (
    fit_annealing_coefficient,
    window,
)
from toposcope.forecasting.siblings import usable_siblings
from toposcope.least_squares import NORMAL
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector

# Chosen on three collections of published language models (`mpl`, `schaipp`, `xlstm_llama`): docs/forecasters.md.
PRIOR, PRIOR_SPREAD = 0.19, 0.06  # nats, of the gain c of a whole cool-down
PRIOR_SHARE = PRIOR / 3.1  # of the loss, where it is not in nats: the prior over the usual loss of a language model
MIN_PRIOR_SHARE, MAX_PRIOR_SHARE = 0.015, 0.1  # of the loss: outside, a loss in nats is not that of a language model
MAX_PRIOR_SLOPES = 4.0  # slopes of the run: a larger prior is not of a run that falls as language models do
SLOPE_SHARE, SLOPE_SHARE_SPREAD = 0.5, 0.25  # of the slope: c of any other run (benchmarks/small_families.py)
SIBLING_SHARE = 0.9  # late share of a complete sibling that its own coefficients are fitted to
MIN_DECAY = 0.5  # share of the peak: a sibling whose rate falls by less holds no information on c
MIN_SEEN, MIN_DECAY_SEEN = 0.5, 0.5  # shares of the run and of the decay of its rate from which c is fitted
COOLDOWN_DELAY, COOLDOWN_EXPONENT = 0.03, 1.0  # d and b; best of five pairs at 20 and 30% of these

MIN_SPREAD_SHARE = 1e-6  # of the loss: a smaller spread of c counts as this
MIN_SIBLINGS = 3


@dataclass(frozen=True)
class Prior:
    """What is known of c before the run shows it."""

    centre: float
    spread: float
    source: str
    by_slope: bool = False
    of_siblings: bool = False


class AnnealedLaw(LawForecaster):
    """The law with a given annealing; `share` is the late part of what was seen that it is fitted to."""

    share = LATE_SHARE

    def __init__(self, name: str, annealing: Callable[[Schedule, Steps], Vector]) -> None:
        self.name, self.annealing = name, annealing

    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit L0, A and a, and c where enough of the run was seen."""
        # `pool` and `stack` ask for those of the laws again.
        key = (self, "law", tuple(siblings))
        return cached(log, schedule, key, lambda: self._law(log, schedule, siblings))

    def _law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        c, source = self._coefficient(log, schedule, siblings)
        fit = self.power_law(log, schedule, siblings)
        remarks = fit.warnings()
        seen = schedule.decay_seen(int(log.steps[-1]))
        if source and schedule.cooled(np.array([schedule.last_step]))[0] > 0:
            part = log.steps[-1] / schedule.last_step
            what = f"{seen:.0%} of the decay" if seen < MIN_DECAY_SEEN else f"{part:.0%} of the run"
            only = "only " if min(seen / MIN_DECAY_SEEN, part / MIN_SEEN) < 1 else ""
            remarks += (f"{only}{what} seen: the annealing coefficient is {source}",)

        def loss(steps: Steps) -> Vector:
            return fit(schedule.progress(steps)) - c * self.annealing(schedule, steps)

        return FittedLossCurve(loss, schedule, {**fit.diagnostics(), "c": c, "decay_seen": seen}, remarks)

    def problem(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Problem:
        """Return the loss without its annealing over the progress: while there is none, that of ``s1``."""
        c, _ = self._coefficient(log, schedule, siblings)
        late, annealing = window(log, schedule, self.share), self._annealing(log, schedule, self.share)
        if self.share == LATE_SHARE and not annealing.any():
            return S1.problem(log, schedule, ())
        points = schedule.progress(late.steps), late.loss + c * annealing, late.weight
        return (self.name, "given", c, self.share), points

    def _coefficient(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> tuple[float, str]:
        """Return c, and its source; empty if it was fitted to the run itself."""

        def find() -> tuple[float, str]:
            prior = self.prior(log, schedule, siblings)
            step = int(log.steps[-1])
            if step >= MIN_SEEN * schedule.last_step and schedule.decay_seen(step) >= MIN_DECAY_SEEN:
                key = (self.name, prior.centre, prior.spread)
                c = cached(log, schedule, key, lambda: self._fit_coefficient(log, schedule, prior, LATE_SHARE))
                if c is not None:
                    return c, ""
            return prior.centre, prior.source

        return cached(log, schedule, (self, "coefficient", tuple(siblings)), find)

    def _fit_coefficient(self, log: Run, schedule: Schedule, prior: Prior | None, share: float) -> float | None:
        """Return c, rounded; the prior counts as one more observation. None if no sound law fits."""
        late = window(log, schedule, share)
        x, G = schedule.progress(late.steps), self._annealing(log, schedule, share)
        c = fit_annealing_coefficient(x, G, late.loss, late.weight, (prior.centre, prior.spread) if prior else None)
        return None if c is None else _rounded(c)

    def _annealing(self, log: Run, schedule: Schedule, share: float) -> Vector:
        key = (self.name, "annealing", share)
        return cached(log, schedule, key, lambda: self.annealing(schedule, window(log, schedule, share).steps))

    def prior(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Prior:
        """Return the prior from siblings, else that of language models, else from the slope.

        It is rounded, so that equal priors give the same fit.
        """
        n, centre, spread = self._of_siblings(tuple(usable_siblings(log, siblings)))
        level = float(np.median(log.loss[-len(log.loss) // 10 - 1 :]))
        if n >= MIN_SIBLINGS:
            spread = max(spread, 0.1 * centre, MIN_SPREAD_SHARE * float(log.loss[-1]))
            source = f"the median of {n} siblings, {centre:.3g}"
            return Prior(_rounded(centre), _rounded(spread), source, of_siblings=True)
        slope = present_slope(log, schedule)
        nats = log.unit == "nats"
        centre = PRIOR if nats else PRIOR_SHARE * level
        if centre <= MAX_PRIOR_SLOPES * slope and MIN_PRIOR_SHARE * level <= centre <= MAX_PRIOR_SHARE * level:
            source = f"a prior, {PRIOR} nats" if nats else f"a prior, {PRIOR_SHARE:.0%} of the loss"
            return Prior(_rounded(centre), _rounded(PRIOR_SPREAD / PRIOR * centre), source)
        centre, spread = SLOPE_SHARE * slope, max(SLOPE_SHARE_SPREAD * slope, MIN_SPREAD_SHARE * level)
        source = f"{SLOPE_SHARE} of the present slope in ln S1, {centre:.3g}"
        return Prior(_rounded(centre), _rounded(spread), source, by_slope=True)

    @lru_cache(maxsize=512)  # noqa: B019 - three laws that live as long as the program
    def _of_siblings(self, runs: tuple[LoggedRun, ...]) -> tuple[int, float, float]:
        """Return how many siblings have a coefficient of their own, its median and its spread."""
        coefficients = np.array([c for c in map(self._coefficient_of, runs) if c is not None])
        if len(coefficients) < MIN_SIBLINGS:
            return len(coefficients), np.nan, np.nan
        centre = float(np.median(coefficients))
        return len(coefficients), centre, NORMAL * float(np.median(np.abs(coefficients - centre)))

    def _coefficient_of(self, run: LoggedRun) -> float | None:
        """Return the coefficient fitted to a complete run by itself; None if its rate hardly falls."""

        def fit() -> float | None:
            if np.ptp(run.schedule.cooled(run.log.steps)) < MIN_DECAY:
                return None
            try:
                return self._fit_coefficient(run.log, run.schedule, None, SIBLING_SHARE)
            except RefusedError:
                return None

        return cached(run.log, run.schedule, (self.name, "own"), fit)


def _rounded(c: float) -> float:
    """Round to three digits, so that equal fits are not done again."""
    return float(f"{c:.3g}")


def delayed_decay(schedule: Schedule, steps: Steps) -> Vector:
    """Return the annealing K of ``cooldown``, shape of `steps`; the decays of the learning rate are grouped.

    K(t) = sum over k <= t of (eta_{k-1} - eta_k) / eta_pk [1 - (1 + (S1(t) - S1(k)) / (d S1(T)))^-b]. It is that of
    Luo et al. 2025 (the multi-power law), with the delay d as a share of the whole progress S1(T) rather than a sum of
    learning rates. So it is comparable between runs of any batch size and length, and one coefficient is left.
    """
    progress, size = schedule.grouped_decays
    if not len(progress):
        return np.zeros(len(steps))
    since = schedule.progress(steps)[:, None] - progress
    delay = COOLDOWN_DELAY * schedule.progress(np.array([schedule.last_step]))[0]
    reached = np.where(since >= 0, 1 - (1 + np.maximum(since, 0) / delay) ** -COOLDOWN_EXPONENT, 0.0)
    return np.asarray(reached @ size)


S1_ANNEAL = AnnealedLaw("s1_anneal", Schedule.cooled)
"""G = 1 - eta_t / eta_pk: the gain follows the learning rate at once."""
ANNEALING = AnnealedLaw("annealing", Schedule.momentum)
"""G = S2: the gain follows with a delay of about a thousand steps (Tissue et al. 2024, arXiv:2408.11029)."""
COOLDOWN: AnnealedLaw = AnnealedLaw("cooldown", delayed_decay)
"""G = K: the gain follows with a delay that grows with the run."""


FORECASTERS = (S1_ANNEAL, ANNEALING, COOLDOWN)
