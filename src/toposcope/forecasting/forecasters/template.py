"""``template``: an affine map from log L(f) to log L(T), over sibling runs of the same schedule."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from toposcope.forecasting.forecast import Forecast, RefusedError, Run, curve_steps, fraction_seen
from toposcope.forecasting.forecasters.siblings import kin
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

RECENT = 0.05
"""Share of the steps seen over which the present loss is the mean."""
SAME_SHAPE = 0.05
"""Mean difference of two schedules, over the peak."""
FEWEST = 4
FLAT = 0.02
"""Spread of log L(f); with less the slope of the map is taken as 1."""


class Template:
    """The siblings of the same schedule end as this run will."""

    name = "template"

    def fit(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> Forecast:
        """Forecast."""
        fraction = fraction_seen(log, schedule)
        relatives = [run for run in kin(log, siblings) if run.log.family == log.family]
        alike = [run for run in relatives if _same_shape(run.schedule, schedule)]
        told, now, end = _known(alike, fraction)
        if len(told) < FEWEST:
            raise RefusedError(
                f"{len(told)} siblings of the family follow the same schedule; a template needs at least {FEWEST}"
            )
        slope, offset = _line(now, end)
        loss = float(np.exp(offset + slope * np.log(_level(log))))
        errors = _errors(tuple(told), fraction)
        steps = curve_steps(log, schedule)
        return Forecast(
            self.name,
            loss,
            steps=steps[[0, -1]],
            curve=np.array([_level(log), loss]),
            errors=errors,
            relatives=np.ones(len(errors), dtype=bool),
            diagnostics={"slope": slope, "offset": offset, "siblings": float(len(told))},
        )


@lru_cache(maxsize=512)
def _errors(runs: tuple[Run, ...], fraction: float) -> Vector:
    """Return log(foretold / final) of runs, each by the others of other sizes, if these are enough."""
    told, now, end = _known(runs, fraction)
    sizes = [run.size for run in told]
    lines = {}
    for size in set(sizes):
        others = np.array([other != size for other in sizes])
        if others.sum() >= FEWEST:
            lines[size] = _line(now[others], end[others])
    kept = [(lines[size], i) for i, size in enumerate(sizes) if size in lines]
    return np.array([offset + slope * now[i] - end[i] for (slope, offset), i in kept])


def _known(runs: Sequence[Run], fraction: float) -> tuple[list[Run], Vector, Vector]:
    """Return the runs that were seen at the fraction, log of the loss there and at the end."""
    told, now, end = [], [], []
    for run in runs:
        seen = run.seen(fraction)
        if seen is None:
            continue
        told.append(run)
        now.append(np.log(_level(seen)))
        end.append(np.log(run.final()))
    return told, np.array(now), np.array(end)


def _level(log: Log) -> float:
    """Return the mean loss over the last 5% of the steps seen."""
    return float(log.loss[log.steps >= (1 - RECENT) * log.steps[-1]].mean())


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Return slope and offset by Theil and Sen's medians, which no single sibling can turn."""
    if x.std() < FLAT:
        return 1.0, float(np.median(y - x))
    i, j = np.triu_indices(len(x), 1)
    apart = np.abs(x[j] - x[i]) > FLAT / 2
    slope = float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 1.0
    return slope, float(np.median(y - slope * x))


def _same_shape(one: Schedule, other: Schedule) -> bool:
    return float(np.abs(one.shape - other.shape).mean()) < SAME_SHAPE
