"""Forecasters that fit a law of the steps; ``last``, ``power_law`` and ``s1`` know no gain from a falling rate."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import (
    Forecast,
    LoggedRun,
    RefusedError,
    curve_steps,
    end_steps,
    fraction_seen,
)
from toposcope.forecasting.forecasters.power_law_fit import (
    MAX_SPIKE,
    Points,
    PowerLawFit,
    fit_power_law,
    fit_power_laws,
    window,
)
from toposcope.forecasting.held_out import runs_held_out
from toposcope.forecasting.siblings import usable_siblings
from toposcope.logs import Run, final_losses
from toposcope.logs.caching import Place, cached, compute_batch
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector

# Chosen on three collections of published language models (`mpl`, `schaipp`, `xlstm_llama`): docs/forecasters.md.
LATE_SHARE = 0.7  # late share of what was seen that a law is fitted to

Case = tuple[Run, Schedule, Sequence[LoggedRun]]
"""What a law is fitted to: the beginning of a run, its plan, and the siblings."""
Problem = tuple[Hashable, Points]
"""A power law to be fitted, by what its fit is cached under."""


@dataclass(frozen=True, eq=False)
class FittedLossCurve:
    """The loss over the steps of one schedule, by a law that was fitted to its beginning.

    Attributes
    ----------
    loss : callable
        Steps -> the loss there, in the log's unit.
    schedule : Schedule
    diagnostics, remarks
        As in `Forecast`.
    """

    loss: Callable[[Steps], Vector]
    schedule: Schedule
    diagnostics: dict[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @cached_property
    def _final(self) -> float:
        return float(self.loss(end_steps(self.schedule)).mean())

    def final(self) -> float:
        """Return the final loss.

        Raises
        ------
        RefusedError
            If it is not finite and positive.
        """
        if not (np.isfinite(self._final) and self._final > 0):
            raise RefusedError("the law that fits ends at a loss that is not positive; more of the run has to be seen")
        return self._final


class LawForecaster(ABC):
    """Forecasts by a law; a subclass has a `name` and fits the law."""

    name: str

    @abstractmethod
    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit the law to what was seen; arguments and errors as those of `fit`."""

    def problem(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Problem | None:
        """Return the power law that `law` fits; None where it fits none. Arguments and errors as those of `fit`."""
        return None

    def prepare(self, cases: Sequence[Case]) -> None:
        """Fit at once what `law` is going to be asked for: many small fits take half of the time together."""
        problems: dict[Place, Points] = {}
        for log, schedule, siblings in cases:
            with suppress(RefusedError):
                if problem := self.problem(log, schedule, siblings):
                    problems[log, schedule, problem[0]] = problem[1]
        compute_batch(problems, fit_power_laws)

    def power_law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun] = ()) -> PowerLawFit:
        """Return the fit to `problem`."""
        problem = self.problem(log, schedule, siblings)
        assert problem is not None
        return cached(log, schedule, problem[0], lambda: fit_power_law(*problem[1]))

    def fit(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        """Forecast the run, and the siblings from the same fraction, each without the runs of its size.

        Raises
        ------
        RefusedError
            If the final loss is not identifiable from this log.
        """
        fitted = self.law(log, schedule, siblings)
        errors, relatives = self._errors(log, schedule, siblings)
        steps = curve_steps(log, schedule)
        return Forecast(
            forecaster=self.name,
            loss=fitted.final(),
            steps=steps,
            curve=fitted.loss(steps),
            errors=errors,
            relatives=relatives,
            diagnostics=fitted.diagnostics,
            remarks=fitted.remarks,
        )

    def _errors(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> tuple[Vector, NDArray[np.bool_]]:
        """Return log(predicted / final) of the siblings that can be forecast, and which are of the log's family."""
        runs = tuple(usable_siblings(log, siblings))
        errors = _sibling_errors(self, runs, fraction_seen(log, schedule), schedule.assumed)
        known = np.isfinite(errors)
        relatives = np.array([run.log.family == log.family for run in runs], dtype=bool)
        return errors[known], relatives[known]


@lru_cache(maxsize=512)
def _sibling_errors(forecaster: LawForecaster, runs: tuple[LoggedRun, ...], fraction: float, assumed: bool) -> Vector:
    """Return log(predicted / final) of each run, predicted without the runs of its size; NaN if it cannot be."""
    errors = np.full(len(runs), np.nan)
    cases = runs_held_out(runs, fraction, assumed)
    forecaster.prepare([(case.seen, case.schedule, case.others) for case in cases if case is not None])
    for i, case in enumerate(cases):
        if case is None:
            continue
        try:
            law = forecaster.law(case.seen, case.schedule, case.others)
            errors[i] = np.log(law.final() / case.run.final())
        except RefusedError:
            continue
    return errors


class Last(LawForecaster):
    """The loss stays at the mean of the last 2% of what was logged."""

    name = "last"

    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Take the mean."""
        recent = final_losses(log.loss)
        loss = np.minimum(recent, MAX_SPIKE * np.median(recent)).mean()
        return FittedLossCurve(lambda steps: np.full(len(steps), loss), schedule)


class StepPowerLaw(LawForecaster):
    """L0 + A t^-a in the steps t, fitted to the late 70% of what was seen; it knows no learning rate."""

    name = "power_law"

    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit L0, A and a."""
        fit = self.power_law(log, schedule)
        return FittedLossCurve(
            lambda steps: fit(self._covariate(schedule, steps)), schedule, fit.diagnostics(), fit.warnings()
        )

    def problem(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Problem:
        """Return the loss over the steps, or the progress."""
        late = window(log, schedule, LATE_SHARE)
        return self.name, (self._covariate(schedule, late.steps), late.loss, late.weight)

    def _covariate(self, schedule: Schedule, steps: Steps) -> Vector:
        """Return what the loss is a power law of."""
        return steps.astype(np.float64)


class ProgressPowerLaw(StepPowerLaw):
    """L0 + A S1^-a, a power law of the learning rate summed so far."""

    name = "s1"

    def _covariate(self, schedule: Schedule, steps: Steps) -> Vector:
        return schedule.progress(steps)


S1 = ProgressPowerLaw()


def present_slope(log: Run, schedule: Schedule) -> float:
    """Return -dL/d ln S1 at the last step seen, by the law of ``s1``, in the unit of the loss; at least 0."""
    fit = S1.power_law(log, schedule)
    return fit.A * fit.a


def residual(log: Run, schedule: Schedule) -> float:
    """Return the scale of the residuals of the law of ``s1``, in the unit of the loss; errors as of `present_slope`."""
    return S1.power_law(log, schedule).scale


FORECASTERS = (Last(), StepPowerLaw(), S1)
