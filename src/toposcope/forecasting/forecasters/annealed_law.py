"""L0 + A S1^-a - c G(t): what two laws share that differ in G, the annealing (METHODS 9).

The coefficient c is nearly unseen until the learning rate has fallen, and then it is confused with the exponent. So it
is that of sibling runs, or a prior, until half of the run and half of the fall were seen; from then on it is fitted,
drawn towards the prior.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecast import RefusedError, Run
from toposcope.forecasting.forecasters.annealed_fit import fit_coefficient
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.siblings import kin
from toposcope.forecasting.forecasters.variable_projection import NORMAL, PowerLawFit, fit_power_law
from toposcope.forecasting.forecasters.window import LATE, window
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

Annealing = Callable[[Schedule, NDArray[np.int64]], Vector]

PRIOR, PRIOR_SPREAD = 0.19, 0.06
"""Of c, in nats (METHODS 9)."""
PRIOR_SHARE = PRIOR / 3.1
"""Of the loss, where it is not in nats: the prior over the usual loss of a language model."""
MOST_SHARE = 0.1
"""Of the loss, where that is in nats but small: a prior for language models does not hold there."""
LEAST_SPREAD = 1e-6
SIBLINGS_SEEN = 0.9
"""Late share of a complete sibling that its own coefficient is fitted to."""
LEAST_FALL = 0.5
"""Of the peak: a sibling whose rate falls less tells nothing of c."""
FEWEST_SIBLINGS = 3
SEEN, FALLEN = 0.5, 0.5
"""Shares of the run and of the fall of its rate that have to be seen before c is fitted."""


@dataclass(frozen=True)
class Prior:
    """What is thought of c before the run tells."""

    centre: float
    spread: float
    source: str

    def rounded(self) -> "Prior":
        """Return it to three digits, so that the fit is the same whichever of two priors that are equal came first."""
        return replace(self, centre=_rounded(self.centre), spread=_rounded(self.spread))


class AnnealedLaw(LawForecaster):
    """A law with annealing G, as a forecaster."""

    def __init__(self, name: str, annealing: Annealing) -> None:
        self.name, self.annealing = name, annealing

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Fit L0, A and a, and c where enough was seen of it."""
        found, c, source = self._fitted(log, schedule, siblings)
        remarks = found.warnings()
        seen = schedule.decay_seen(int(log.steps[-1]))
        if source and schedule.cooled(np.array([schedule.last_step]))[0] > 0:
            part = log.steps[-1] / schedule.last_step
            what = f"{seen:.0%} of the decay" if seen < FALLEN else f"{part:.0%} of the run"
            only = "only " if min(seen / FALLEN, part / SEEN) < 1 else ""
            remarks += (f"{only}{what} seen: the annealing coefficient is {source}",)

        def loss(steps: NDArray[np.int64]) -> Vector:
            return found(schedule.progress(steps)) - c * self.annealing(schedule, steps)

        return FittedLaw(loss, schedule, {**found.told(), "c": c, "decay_seen": seen}, remarks)

    def _fitted(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> tuple[PowerLawFit, float, str]:
        """Return the law, c, and where c is from; nothing for the latter if the run itself told it."""
        prior = self._prior(log, siblings).rounded()
        step = int(log.steps[-1])
        if step < SEEN * schedule.last_step or schedule.decay_seen(step) < FALLEN:
            return self._given(log, schedule, prior.centre, LATE), prior.centre, prior.source
        key = (self.name, prior.centre, prior.spread)
        c = remembered(log, schedule, key, lambda: self._free(log, schedule, prior, LATE))
        if c is None:
            return self._given(log, schedule, prior.centre, LATE), prior.centre, prior.source
        return self._given(log, schedule, c, LATE), c, ""

    def _given(self, log: Log, schedule: Schedule, c: float, share: float) -> PowerLawFit:
        """Fit the law for a given c."""

        def make() -> PowerLawFit:
            late = window(log, schedule, share)
            level = late.loss + c * self._annealing(log, schedule, share)
            return fit_power_law(schedule.progress(late.steps), level, late.weight)

        return remembered(log, schedule, (self.name, "given", c, share), make)

    def _free(self, log: Log, schedule: Schedule, prior: Prior | None, share: float) -> float | None:
        """Return c as fitted, rounded; the prior counts as one more observation. None if nothing sound fits."""
        late = window(log, schedule, share)
        x, G = schedule.progress(late.steps), self._annealing(log, schedule, share)
        c = fit_coefficient(x, G, late.loss, late.weight, (prior.centre, prior.spread) if prior else None)
        return None if c is None else _rounded(c)

    def _annealing(self, log: Log, schedule: Schedule, share: float) -> Vector:
        def make() -> Vector:
            return self.annealing(schedule, window(log, schedule, share).steps)

        return remembered(log, schedule, (self.name, "annealing", share), make)

    def _prior(self, log: Log, siblings: Sequence[Run]) -> Prior:
        runs = kin(log, siblings)
        own = [c for c in (self._own(run) for run in runs) if c is not None]
        if len(own) >= FEWEST_SIBLINGS:
            centre = float(np.median(own))
            spread = NORMAL * float(np.median(np.abs(np.array(own) - centre)))
            spread = max(spread, 0.1 * centre, LEAST_SPREAD * float(log.loss[-1]))
            return Prior(centre, spread, f"the median of {len(own)} siblings, {centre:.3g}")
        level = float(np.median(log.loss[-len(log.loss) // 10 - 1 :]))
        if log.unit == "nats" and MOST_SHARE * level >= PRIOR:
            return Prior(PRIOR, PRIOR_SPREAD, f"a prior, {PRIOR} nats")
        share = MOST_SHARE if log.unit == "nats" else PRIOR_SHARE
        return Prior(share * level, PRIOR_SPREAD / PRIOR * share * level, f"a prior, {share:.0%} of the loss")

    def _own(self, run: Run) -> float | None:
        """Return the coefficient that a complete run tells by itself; None if its rate hardly falls."""

        def make() -> float | None:
            if np.ptp(run.schedule.cooled(run.log.steps)) < LEAST_FALL:
                return None
            try:
                return self._free(run.log, run.schedule, None, SIBLINGS_SEEN)
            except RefusedError:
                return None

        return remembered(run.log, run.schedule, (self.name, "own"), make)


def _rounded(c: float) -> float:
    """Round to three digits, so that equal fits are not done again."""
    return float(f"{c:.3g}")
