"""Caches what was computed from a log: a backtest asks for the same fits hundreds of times."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log

T = TypeVar("T")

_results: WeakKeyDictionary[Log, dict[tuple[Schedule | None, Hashable], Any]] = WeakKeyDictionary()


def cached(log: Log, schedule: Schedule | None, key: Hashable, compute: Callable[[], T]) -> T:
    """Return what `compute` returned when `key` was first asked for with this log and schedule."""
    results = _results.setdefault(log, {})
    whole = schedule, key
    if whole not in results:
        results[whole] = compute()
    value: T = results[whole]
    return value
