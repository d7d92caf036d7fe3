"""All forecasters side by side, and the default among them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from toposcope.errors import message_of
from toposcope.forecasting.cooldown import CoolDown
from toposcope.forecasting.forecaster import Forecast, Forecaster, LoggedRun, RefusedError, from_present_level
from toposcope.forecasting.forecasters import forecasters as all_forecasters
from toposcope.forecasting.intervals import MIN_ERRORS, is_language_model, is_learning, with_interval
from toposcope.forecasting.measured_gain import MeasuredLaw, measured_law, not_used
from toposcope.forecasting.stages import (
    Stage,
    Stairs,
    check_course,
    check_epochs,
    check_falls,
    check_plateau,
    new_stage,
)
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule
from toposcope.wording import COVERAGE

MAX_RANGE = 1000.0  # ends of an interval over each other; a wider one is a refusal (benchmarks/forecast_odd_runs.py)

DEFAULT = "default"
PREFERRED, LAST = ("pool", "template"), "last"


@dataclass(frozen=True, eq=False)
class ForecastSet:
    """The forecasts of a run by all forecasters."""

    forecasts: dict[str, Forecast]  # by name, the default first
    refused: dict[str, str]  # name -> why the forecaster made none
    chosen: str  # name of the forecaster that is the default
    stage: Stage | None = None  # the new stage of training that the forecasts are made from, if there is one
    measured: str = ""  # whether a measured gain of the cool-down was used, a sentence; empty if there was none


def run_forecasters(
    log: Run,
    schedule: Schedule,
    siblings: Sequence[LoggedRun],
    forecasters: Sequence[Forecaster] | None = None,
    *,
    only_default: bool = False,
    measured: Sequence[CoolDown] = (),
) -> ForecastSet:
    """Run every forecaster, give each forecast its interval, and choose the default.

    Parameters
    ----------
    log : Run
        The part of the run that was seen.
    schedule : Schedule
        Planned, to the end.
    siblings : sequence of LoggedRun
        Complete runs to borrow from; none of them is the run itself.
    forecasters : sequence of Forecaster, optional
        All that are installed, if left out.
    only_default : bool
        Whether the set holds the default alone: its interval is the same, those of the others are not computed.
    measured : sequence of CoolDown
        What merged checkpoints predict of cool-downs from now on. Where one is planned near, ``s1_anneal``
        takes its gain in place of a prior, and is the default.

    Raises
    ------
    RefusedError
        If all of them refuse, or no law of a learning run describes the loss.
    """
    check_falls(log)
    found: Stage | Stairs | None = None
    if sum(run.log.family == log.family for run in siblings) < MIN_ERRORS:
        check_plateau(log)
        found = new_stage(log, schedule)
        stairs = found if isinstance(found, Stairs) else None
        check_epochs(log, schedule, stairs, is_from_scratch=is_language_model(log, schedule))
        if stairs is not None:  # within the last epoch
            found = Stage(stairs.steps[-1], 0.0, is_epoch=True)
        check_course(log, schedule, found)
    stage = found if isinstance(found, Stage) else None
    if stage is not None:
        log = log.since(stage.step)
    law: MeasuredLaw | None = None
    said = ""
    if measured:
        law, said = measured_law(measured, log, schedule, siblings)
    chosen_laws = [
        law if law is not None and each.name == law.name else each
        for each in (all_forecasters() if forecasters is None else forecasters)
    ]
    made: list[tuple[Forecaster, Forecast]] = []
    refused: dict[str, str] = {}
    for forecaster in chosen_laws:
        try:
            made.append((forecaster, forecaster.fit(log, schedule, siblings)))
        except RefusedError as error:
            refused[forecaster.name] = str(error)
        except Exception as error:
            if type(forecaster).__module__.startswith("toposcope."):
                raise
            refused[forecaster.name] = f"it failed: {type(error).__name__}: {message_of(error)}"
    if not made:
        raise RefusedError(next(iter(refused.values())))

    def bounded(forecaster: Forecaster, each: Forecast) -> Forecast:
        if isinstance(forecaster, MeasuredLaw):
            return forecaster.with_interval(from_present_level(each, log), log, schedule)
        return with_interval(
            from_present_level(each, log),
            log,
            schedule,
            jump=0.0 if stage is None else abs(stage.jump),
        )

    if law is not None and law.name in refused:
        said = not_used(law.measured, refused[law.name])
        law = None
    learns = is_learning(log)
    first = _first_choice(made) if law is None else law.name
    if only_default and (first or not learns):
        made = [pair for pair in made if pair[0].name == (first if learns else LAST)] or made
    forecasts = {forecaster.name: bounded(forecaster, each) for forecaster, each in made}
    # Of a run whose loss rises or is constant no law holds: the last value.
    chosen = next(name for name in (first if learns else LAST, *forecasts) if name in forecasts)
    low, high = forecasts[chosen].low, forecasts[chosen].high
    if learns and len(made) > 1 and high > MAX_RANGE * low:
        raise RefusedError(
            f"{log.name}: laws missed by so much from earlier steps of this run, or differ so much now, that a "
            f"{COVERAGE:.0%} interval would go from {low:.2g} to {high:.2g}: the final loss "
            "is not identifiable from this log"
        )
    default = replace(forecasts[chosen], forecaster=DEFAULT)
    return ForecastSet({DEFAULT: default, **forecasts}, refused, chosen, stage, said)


def _first_choice(made: Sequence[tuple[Forecaster, Forecast]]) -> str:
    """Return the default where it needs no interval to choose it, else an empty string.

    It is the stack that errs less on the siblings, each held out with its size; without stacks the first preferred one.
    """
    errors = {forecaster.name: each.errors for forecaster, each in made}
    stacks = [name for name in ("stack", "stack_norms") if name in errors]
    if stacks:
        return min(stacks, key=lambda name: float(np.median(np.abs(errors[name]))))
    return next((name for name in PREFERRED if name in errors), "")
