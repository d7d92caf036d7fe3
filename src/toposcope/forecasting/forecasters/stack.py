"""``stack``: what siblings of other sizes teach about the errors of the laws.

A ridge on log(final / cooldown), fitted to sibling runs at the same fraction. It sees where the other laws stand beside
``cooldown``, log N, log T, log of the peak rate, the loss level and its slope (METHODS 9), and, if they are handed in,
further features of each run. Whatever it is told of a sibling is made without the runs of that sibling's size.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from toposcope.forecasting.forecast import Forecast, RefusedError, Run, curve_steps, fraction_seen
from toposcope.forecasting.forecasters.annealing import ANNEALING
from toposcope.forecasting.forecasters.cooldown import COOLDOWN
from toposcope.forecasting.forecasters.last import Last
from toposcope.forecasting.forecasters.law_forecaster import LawForecaster
from toposcope.forecasting.forecasters.power_law import PowerLaw
from toposcope.forecasting.forecasters.ridge import RidgeFit, fit_ridge
from toposcope.forecasting.forecasters.s1 import S1
from toposcope.forecasting.forecasters.s1_anneal import S1_ANNEAL
from toposcope.forecasting.forecasters.siblings import kin, of_other_sizes
from toposcope.forecasting.forecasters.window import window
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

Extra = Mapping[str, Sequence[float]]
"""Name of a run -> further features of it at the fraction."""

BASE = COOLDOWN
BESIDE: tuple[LawForecaster, ...] = (Last(), PowerLaw(), S1(), S1_ANNEAL, ANNEALING)
RECENT = 0.5
"""Late share of what was seen over which the slope is taken."""
STILL = 1e-10
"""Mean squared change of the logarithm of progress."""
FEWEST_RUNS, FEWEST_SIZES = 8, 2


class Stack:
    """Ridge over siblings of the family.

    Parameters
    ----------
    extra : mapping, optional
        Further features of every run, also of the one to forecast; equally many of each. A run without is left out.
    """

    name = "stack"

    def __init__(self, extra: Extra | None = None) -> None:
        self._extra = extra
        self._fitted = lru_cache(maxsize=256)(self._fit)

    def fit(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> Forecast:
        """Forecast.

        Raises
        ------
        RefusedError
            If fewer than 8 siblings of the family, or of 2 sizes, can be foretold at this fraction.
        """
        relatives = tuple(run for run in kin(log, siblings) if run.log.family == log.family)
        sized = bool(np.isfinite(log.parameters))
        if sized:
            # a size beside one that is not known cannot be compared
            relatives = tuple(run for run in relatives if np.isfinite(run.log.parameters))
        ridge, errors, reach = self._fitted(relatives, fraction_seen(log, schedule), sized)
        base = BASE.law(log, schedule, relatives)
        row = self._features(log, schedule, relatives, base.final(), sized)
        correction = float(ridge(row[None])[0])
        steps = curve_steps(log, schedule)
        done = (steps - steps[0]) / max(steps[-1] - steps[0], 1)
        return Forecast(
            self.name,
            base.final() * np.exp(correction),
            steps=steps,
            curve=base.loss(steps) * np.exp(correction * done),
            errors=errors / reach * ridge.reach(row[None]),
            relatives=np.ones(len(errors), dtype=bool),
            diagnostics={
                "correction": correction,
                "strength": ridge.strength,
                "reach": float(ridge.reach(row[None])[0]),
                "siblings": float(len(errors)),
            },
            remarks=base.remarks,
        )

    def _fit(self, relatives: tuple[Run, ...], fraction: float, sized: bool) -> tuple[RidgeFit, Vector, Vector]:
        """Fit the ridge; return it, log(foretold / final) of each sibling, held out with its size, and its reach."""
        rows, target, sizes = [], [], []
        for run in relatives:
            seen = run.seen(fraction)
            if seen is None:
                continue
            others = of_other_sizes(run, relatives)
            try:
                base = BASE.law(seen, run.schedule, others).final()
                row = self._features(seen, run.schedule, others, base, sized)
            except RefusedError:
                continue
            rows.append(row)
            target.append(np.log(run.final() / base))
            sizes.append(run.size)
        if len(rows) < FEWEST_RUNS or len(set(sizes)) < FEWEST_SIZES:
            raise RefusedError(
                f"{len(rows)} siblings of the family and {len(set(sizes))} sizes can be foretold at this fraction;"
                f" a stack needs {FEWEST_RUNS} of {FEWEST_SIZES}"
            )
        ridge = fit_ridge(np.array(rows), np.array(target), sizes)
        return ridge, ridge.held_out - np.array(target), ridge.reach(np.array(rows))

    def _features(self, log: Log, schedule: Schedule, siblings: Sequence[Run], base: float, sized: bool) -> Vector:
        known = features(log, schedule, siblings, base, sized)
        if self._extra is None:
            return known
        if log.name not in self._extra:
            raise RefusedError(f"{log.name}: its further features are not known")
        return np.array([*known, *self._extra[log.name]])


def features(log: Log, schedule: Schedule, siblings: Sequence[Run], base: float, sized: bool) -> Vector:
    """Return what the stack sees of a run: log(law / base) for each law of `BESIDE`, then slope, level and plan.

    Parameters
    ----------
    log : Log
        What was seen.
    schedule : Schedule
    siblings : list of Run
        That the laws may borrow from.
    base : float
        The final loss that `BASE` foretells.
    sized : bool
        Whether the parameters count.

    Raises
    ------
    RefusedError
        If a law refuses.
    """
    beside = [np.log(law.law(log, schedule, siblings).final() / base) for law in BESIDE]
    late = window(log, schedule, RECENT)
    slope = slope_of(np.log(schedule.progress(late.steps)), np.log(late.loss))
    level = np.log(late.loss[-max(1, len(late.loss) // 10) :].mean())
    # what is not known of the run to forecast is the same for all, and then tells nothing
    size = np.log(log.parameters) if sized else 0.0
    return np.array([*beside, slope, level, size, np.log(schedule.last_step), np.log(schedule.peak)])


def slope_of(x: Vector, y: Vector) -> float:
    """Return the slope of y over x by least squares; 0 where x stands still, as the progress at a rate of 0 does."""
    left = x - x.mean()
    size = float(left @ left)
    return float(left @ y) / size if size > STILL * len(x) else 0.0
