"""Running the tasks of an experiment in processes; the first that cannot be done ends it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from toposcope.engine import Engine, TaskFailure
from toposcope.extend import Progress, ToposcopeError, silent

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_all(
    engine: Engine,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    name: Callable[[Task], str],
    progress: Progress = silent,
    done: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Return the results of tasks in the order of the tasks, which need not be that in which they finish."""
    results: dict[str, Result] = {}
    for n_done, (task, result) in enumerate(engine.run(function, tasks, progress), start=1):
        if isinstance(result, TaskFailure):
            raise ToposcopeError(f"{name(task)}: {result.message}")
        results[name(task)] = result
        done(n_done)
    return [results[name(task)] for task in tasks]
