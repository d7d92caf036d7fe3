"""A cache of what was computed from a run."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from toposcope.logs.run import Run

T = TypeVar("T")
Problem = TypeVar("Problem")
Place = tuple[Run, Hashable, Hashable]
"""Log, schedule and key of a result."""

_results: WeakKeyDictionary[Run, dict[tuple[Hashable, Hashable], Any]] = WeakKeyDictionary()


def cached(log: Run, schedule: Hashable, key: Hashable, compute: Callable[[], T]) -> T:
    """Return what `compute` returned when `key` was first asked for with this log and schedule."""
    results = _results.setdefault(log, {})
    whole = schedule, key
    if whole not in results:
        results[whole] = compute()
    value: T = results[whole]
    return value


def compute_batch(problems: Mapping[Place, Problem], compute: Callable[[Sequence[Problem]], Sequence[object]]) -> None:
    """Compute at once what `cached` is going to be asked for, where it is not known yet."""
    missing = {place: each for place, each in problems.items() if place[1:] not in _results.get(place[0], {})}
    for (log, schedule, key), result in zip(missing, compute(list(missing.values())), strict=True):
        _results.setdefault(log, {})[schedule, key] = result
