"""Held-out evaluation: which runs are predicted from which, and the quantile of their errors."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import LoggedRun
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope.typing import Indices, Vector
from toposcope.wording import COVERAGE

Mask = NDArray[np.bool_]

# Of the level `COVERAGE`, as are `COOL_DOWN_ERROR` (cooldown) and the table widths.csv.
NORMAL_WIDTH = 1.645
"""Half the width of a 90% interval of a normal distribution: no interval is narrower in its standard deviations."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Runs that are predicted from others."""

    name: str  # what is held out
    trained: Mask  # shape (n,)
    predicted: Mask  # shape (n,)


def group_folds(groups: Sequence[Hashable] | Indices) -> list[Fold]:
    """Return a fold for each group, predicted from all other groups, sorted by name."""
    names = sorted(set(groups), key=str)
    masks = [np.array([group == name for group in groups], dtype=bool) for name in names]
    return [Fold(str(name), ~mask, mask) for name, mask in zip(names, masks, strict=True)]


class HeldOutRun(NamedTuple):
    """A sibling seen at a fraction, the schedule that it is forecast with, and the runs of other sizes."""

    run: LoggedRun
    seen: Run
    schedule: Schedule
    others: tuple[LoggedRun, ...]


def known_schedule(run: LoggedRun, seen: Run, siblings: Sequence[LoggedRun]) -> Schedule:
    """Return the schedule of a complete run as it was known from its beginning, to the end of its log.

    It is what `toposcope.forecasting.forecast` would assume, given the siblings and the number of steps planned: by the
    learning rates that were seen, then as in the siblings, then by the shape so far. Nothing else of the run's schedule
    is used.

    Raises
    ------
    ToposcopeError
        If a rate that was seen is negative.
    """

    def known() -> Schedule:
        end = run.schedule.last_step
        # a log may end shortly before the plan does; the shape of the plan is known all the same
        schedule = planned(seen, last_step=max(end, run.log.last_step or end), siblings=[each.log for each in siblings])
        if schedule.last_step != end:
            schedule = schedule.until(end)
        # equal schedules are one object, so that what was computed with them is found again
        return cached(seen, run.schedule, schedule.rates.tobytes(), lambda: schedule)

    return cached(seen, run.schedule, ("known schedule", tuple(siblings)), known)


@lru_cache(maxsize=64)
def runs_held_out(runs: tuple[LoggedRun, ...], fraction: float, assumed: bool) -> tuple[HeldOutRun | None, ...]:
    """Return what each run is forecast from without those of its size; None for runs of which nothing was seen.

    Schedules are assumed where that of the run to forecast is: errors of siblings then hold what comes of wrong
    assumptions as well.
    """
    others = {size: tuple(run for run in runs if run.size != size) for size in {run.size for run in runs}}
    cases: list[HeldOutRun | None] = []
    for run in runs:
        seen, siblings = run.seen(fraction), others[run.size]
        if seen is None:
            cases.append(None)
            continue
        schedule = known_schedule(run, seen, siblings) if assumed else run.schedule
        cases.append(HeldOutRun(run, seen, schedule, siblings))
    return tuple(cases)


def quantile(errors: Vector, level: float = COVERAGE) -> float:
    """Return the ceil((n + 1) level)-th smallest of n absolute errors, or the largest (Vovk et al. 2005)."""
    k = min(int(np.ceil((len(errors) + 1) * level)), len(errors))
    return float(np.sort(errors)[k - 1])
