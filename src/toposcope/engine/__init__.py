"""Run many tasks: worker processes of this machine, or a Ray cluster. Results do not depend on which."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["Engine", "TaskFailure", "Workers", "one_thread", "processors", "report", "shared"]

if TYPE_CHECKING:
    from toposcope.engine.pool import Engine, TaskFailure, Workers, one_thread, processors, report, shared

__getattr__, __dir__ = lazy_imports(__name__, __file__)
