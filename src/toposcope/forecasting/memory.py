"""What was worked out of a log is not worked out again: a backtest asks for the same run hundreds of times."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log

T = TypeVar("T")

_known: WeakKeyDictionary[Log, dict[tuple[Schedule, Hashable], Any]] = WeakKeyDictionary()


def remembered(log: Log, schedule: Schedule, what: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` returned when it was last asked for `what` of this log under this schedule."""
    found = _known.setdefault(log, {})
    key = (schedule, what)
    if key not in found:
        found[key] = make()
    value: T = found[key]
    return value
