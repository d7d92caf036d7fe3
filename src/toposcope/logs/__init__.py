"""Training logs: what any tool wrote about a run, read into one form."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = [
    "COLUMNS",
    "UNITS",
    "LogTable",
    "Logs",
    "Run",
    "final_losses",
    "final_training_loss",
    "find_log",
    "read_log",
    "read_logs",
]
if TYPE_CHECKING:
    from toposcope.logs.reading import Logs, find_log, read_log, read_logs
    from toposcope.logs.run import UNITS, Run, final_losses, final_training_loss
    from toposcope.logs.table import COLUMNS, LogTable

# Polars is imported when a log is read: the doctor can mostly do without.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
