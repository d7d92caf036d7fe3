"""``template``: an affine map from log L(f) to log L(T), over sibling runs of the same schedule."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from toposcope.forecasting.forecaster import Forecast, LoggedRun, RefusedError, curve_steps, fraction_seen
from toposcope.forecasting.held_out import group_folds
from toposcope.forecasting.siblings import usable_siblings
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import N_SHAPE_STEPS, Schedule
from toposcope.typing import Vector

# Chosen on three collections of published language models (`mpl`, `schaipp`, `xlstm_llama`): docs/forecasters.md.
MAX_SHAPE_DIFFERENCE = 0.05  # mean difference, over the peak, of two schedules that count as the same
MIN_LEVEL_SPREAD = 0.02  # of the siblings' ln L(f); with less the slope of the template is 1

MIN_SIBLINGS = 4


class Template:
    """The run ends as its siblings of the same schedule did."""

    name = "template"

    def fit(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        """Forecast."""
        known, slope, offset = _template(log, schedule, siblings)
        loss = float(np.exp(offset + slope * np.log(_level(log))))
        errors = _errors(tuple(known), fraction_seen(log, schedule))
        steps = curve_steps(log, schedule)
        return Forecast(
            self.name,
            loss,
            steps=steps[[0, -1]],
            curve=np.array([_level(log), loss]),
            errors=errors,
            relatives=np.ones(len(errors), dtype=bool),
            diagnostics={"slope": slope, "offset": offset, "siblings": float(len(known))},
        )


def template_final(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> float:
    """Return the predicted final loss alone; errors as of `Template.fit`."""
    _, slope, offset = _template(log, schedule, siblings)
    return float(np.exp(offset + slope * np.log(_level(log))))


def _template(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> tuple[list[LoggedRun], float, float]:
    """Return the siblings of the same schedule, and slope and offset of their map."""
    relatives = [run for run in usable_siblings(log, siblings) if run.log.family == log.family]
    shapes = np.array([run.schedule.shape for run in relatives]).reshape(len(relatives), N_SHAPE_STEPS)
    alike = np.abs(shapes - schedule.shape).mean(axis=1) < MAX_SHAPE_DIFFERENCE
    same_schedule = [run for run, same in zip(relatives, alike, strict=True) if same]
    known, now, end = _known(same_schedule, fraction_seen(log, schedule))
    if len(known) < MIN_SIBLINGS:
        raise RefusedError(
            f"{len(known)} siblings of the family follow the same schedule; a template needs at least {MIN_SIBLINGS}"
        )
    return known, *_line(now, end)


@lru_cache(maxsize=512)
def _errors(runs: tuple[LoggedRun, ...], fraction: float) -> Vector:
    """Return log(predicted / final) of runs, each by the others of other sizes, if these are enough."""
    known, now, end = _known(runs, fraction)
    errors = np.full(len(known), np.nan)
    for fold in group_folds([run.size for run in known]):
        if fold.trained.sum() >= MIN_SIBLINGS:
            slope, offset = _line(now[fold.trained], end[fold.trained])
            errors[fold.predicted] = (offset + slope * now - end)[fold.predicted]
    return np.asarray(errors[np.isfinite(errors)])


def _known(runs: Sequence[LoggedRun], fraction: float) -> tuple[list[LoggedRun], Vector, Vector]:
    """Return the runs that were seen at the fraction, log of the loss there and at the end."""
    known, now, end = [], [], []
    for run in runs:
        seen = run.seen(fraction)
        if seen is None:
            continue
        known.append(run)
        now.append(np.log(_level(seen)))
        end.append(np.log(run.final()))
    return known, np.array(now), np.array(end)


def _level(log: Run) -> float:
    """Return the mean loss over the last 5% of the steps seen."""
    return float(log.loss[log.steps >= (1 - 0.05) * log.steps[-1]].mean())


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Return slope and offset by Theil and Sen's medians, which are robust to single siblings."""
    if x.std() < MIN_LEVEL_SPREAD:
        return 1.0, float(np.median(y - x))
    i, j = np.triu_indices(len(x), 1)
    apart = np.abs(x[j] - x[i]) > MIN_LEVEL_SPREAD / 2
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 1.0
    return slope, float(np.median(y - slope * x))


FORECASTERS = (Template(),)
