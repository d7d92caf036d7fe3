"""A cache of what was computed from a run."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from toposcope.logs.run import Run

T = TypeVar("T")

_results: WeakKeyDictionary[Run, dict[tuple[Hashable, Hashable], Any]] = WeakKeyDictionary()


def cached(log: Run, schedule: Hashable, key: Hashable, compute: Callable[[], T]) -> T:
    """Return what `compute` returned when `key` was first asked for with this log and schedule."""
    results = _results.setdefault(log, {})
    whole = schedule, key
    if whole not in results:
        results[whole] = compute()
    value: T = results[whole]
    return value
