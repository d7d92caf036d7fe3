"""Run many tasks: worker processes of this machine, or a Ray cluster. Results do not depend on which."""

from typing import TYPE_CHECKING

from toposcope.lazy import imported_names, lazy_names

__all__ = ["Engine", "TaskFailure", "Workers", "one_thread", "processors", "report", "shared"]

if TYPE_CHECKING:
    from toposcope.engine.pool import Engine, TaskFailure, Workers, one_thread, processors, report, shared

__getattr__, __dir__ = lazy_names(__name__, imported_names(__file__))
