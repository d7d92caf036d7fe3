"""The schedule of a complete run as it was known from its beginning."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from toposcope.forecasting.caching import cached
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.schedules.planned import planned
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.forecasting.siblings import of_other_sizes
from toposcope.logs import Log


def known_schedule(run: LoggedRun, seen: Log, siblings: Sequence[LoggedRun]) -> Schedule:
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
        schedule = planned(seen, last_step=max(end, run.log.last_step or end), siblings=siblings)
        if schedule.last_step != end:
            schedule = Schedule(schedule.rates[: end + 1], schedule.remarks, assumed=schedule.assumed)
        # equal schedules are one object, so that what was computed with them is found again
        return cached(seen, run.schedule, schedule.rates.tobytes(), lambda: schedule)

    return cached(seen, run.schedule, ("known schedule", tuple(siblings)), known)


class HeldOut(NamedTuple):
    """A sibling seen at a fraction, the schedule that it is forecast with, and the runs of other sizes."""

    run: LoggedRun
    seen: Log
    schedule: Schedule
    others: tuple[LoggedRun, ...]


@lru_cache(maxsize=64)
def held_out(runs: tuple[LoggedRun, ...], fraction: float, assumed: bool) -> tuple[HeldOut | None, ...]:
    """Return what each run is forecast from without those of its size; None for runs of which nothing was seen.

    Schedules are assumed where that of the run to forecast is: errors of siblings then hold what comes of wrong
    assumptions as well.
    """
    others = {size: tuple(of_other_sizes(size, runs)) for size in {run.size for run in runs}}
    cases: list[HeldOut | None] = []
    for run in runs:
        seen, siblings = run.seen(fraction), others[run.size]
        if seen is None:
            cases.append(None)
            continue
        schedule = known_schedule(run, seen, siblings) if assumed else run.schedule
        cases.append(HeldOut(run, seen, schedule, siblings))
    return tuple(cases)
