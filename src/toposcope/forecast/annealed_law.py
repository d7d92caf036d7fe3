"""L0 + A S1^-a - c G(t): what two laws share that differ in G, the annealing (METHODS 9).

The coefficient c is nearly unseen until the learning rate has fallen, and then it is confused with the exponent. So it
is that of sibling runs, or a prior, until half of the run and half of the fall were seen; from then on it is fitted,
drawn towards the prior.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.forecast.forecast import RefusedError, Run
from toposcope.forecast.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecast.memory import remembered
from toposcope.forecast.schedule import Schedule
from toposcope.forecast.siblings import kin
from toposcope.forecast.variable_projection import EXPONENTS, NORMAL, PowerLawFit, fit_power_law
from toposcope.forecast.window import LATE, window
from toposcope.logs import Log

Vector = NDArray[np.float64]
Annealing = Callable[[Schedule, NDArray[np.int64]], Vector]

PRIOR, PRIOR_SPREAD = 0.19, 0.06
"""Of c, in nats (METHODS 9)."""
PRIOR_SHARE = PRIOR / 3.1
"""Of the loss, where it is not in nats: the prior over the usual loss of a language model."""
SIBLINGS_SEEN = 0.9
"""Late share of a complete sibling that its own coefficient is fitted to."""
LEAST_FALL = 0.5
"""Of the peak: a sibling whose rate falls less tells nothing of c."""
FEWEST_SIBLINGS = 3
SEEN, FALLEN = 0.5, 0.5
"""Shares of the run and of the fall of its rate that have to be seen before c is fitted."""
STEP = 0.002
"""c is rounded to this, in units of the log, so that equal fits are not done again."""


@dataclass(frozen=True)
class Prior:
    """What is thought of c before the run tells."""

    centre: float
    spread: float
    source: str


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
            remarks += (f"only {seen:.0%} of the decay seen: the annealing coefficient is {source}",)

        def loss(steps: NDArray[np.int64]) -> Vector:
            return found(schedule.progress(steps)) - c * self.annealing(schedule, steps)

        return FittedLaw(loss, schedule, {**found.told(), "c": c, "decay_seen": seen}, remarks)

    def _fitted(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> tuple[PowerLawFit, float, str]:
        """Return the law, c, and where c is from; nothing for the latter if the run itself told it."""
        prior = self._prior(log, siblings)
        step = int(log.steps[-1])
        if step < SEEN * schedule.last_step or schedule.decay_seen(step) < FALLEN:
            c = round(prior.centre / STEP) * STEP
            return self._given(log, schedule, c, LATE), c, prior.source
        key = (self.name, round(prior.centre / STEP), round(prior.spread / STEP))
        found, c = remembered(log, schedule, key, lambda: self._free(log, schedule, prior, LATE))
        return found, c, ""

    def _given(self, log: Log, schedule: Schedule, c: float, share: float) -> PowerLawFit:
        """Fit the law for a given c."""

        def make() -> PowerLawFit:
            late = window(log, schedule, share)
            level = late.loss + c * self._annealing(log, schedule, share)
            return fit_power_law(schedule.progress(late.steps), level, late.weight)

        return remembered(log, schedule, (self.name, "given", c, share), make)

    def _free(self, log: Log, schedule: Schedule, prior: Prior | None, share: float) -> tuple[PowerLawFit, float]:
        """Fit the law with c; the prior counts as one more observation of its spread."""
        late = window(log, schedule, share)
        start = self._given(log, schedule, prior.centre if prior else 0.0, share)
        x, G = schedule.progress(late.steps), self._annealing(log, schedule, share)
        z = (x / x[-1]) ** -EXPONENTS[:, None]
        columns = np.stack([np.ones_like(z), z, np.broadcast_to(-G, z.shape)], axis=2)
        y, weight = np.broadcast_to(late.loss, z.shape), late.weight
        robust = np.broadcast_to(weight, z.shape)
        for _ in range(4):
            normal = np.einsum("kni,kn,knj->kij", columns, robust, columns)
            right = np.einsum("kni,kn,kn->ki", columns, robust, y)
            if prior:
                strength = (start.scale / prior.spread) ** 2
                normal[:, 2, 2] += strength
                right[:, 2] += strength * prior.centre
            normal += 1e-12 * np.eye(3)
            solved = np.linalg.solve(normal, right[:, :, None])[:, :, 0]
            size = np.abs(y - np.einsum("kni,ki->kn", columns, solved))
            scale = NORMAL * np.median(size, axis=1) + 1e-9
            robust = weight * np.minimum(1, 1.345 * scale[:, None] / np.maximum(size, 1e-12))
        losses = (robust * size**2).sum(axis=1) + (
            ((solved[:, 2] - prior.centre) / prior.spread * start.scale) ** 2 if prior else 0
        )
        k = int(np.where((solved[:, :2] >= 0).all(axis=1), losses, np.inf).argmin())
        c = max(round(float(solved[k, 2]) / STEP) * STEP, 0.0)
        return self._given(log, schedule, c, share), c

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
            return Prior(centre, max(spread, 0.1 * centre, STEP), f"the median of {len(own)} siblings, {centre:.2f}")
        if log.unit == "nats":
            return Prior(PRIOR, PRIOR_SPREAD, f"a prior, {PRIOR} nats")
        level = float(np.median(log.loss[-len(log.loss) // 10 - 1 :]))
        return Prior(PRIOR_SHARE * level, PRIOR_SPREAD / PRIOR * PRIOR_SHARE * level, "a prior, 6% of the loss")

    def _own(self, run: Run) -> float | None:
        """Return the coefficient that a complete run tells by itself; None if its rate hardly falls."""

        def make() -> float | None:
            if run.schedule.cooled(run.log.steps).max() < LEAST_FALL:
                return None
            try:
                return self._free(run.log, run.schedule, None, SIBLINGS_SEEN)[1]
            except RefusedError:
                return None

        return remembered(run.log, run.schedule, (self.name, "own"), make)
