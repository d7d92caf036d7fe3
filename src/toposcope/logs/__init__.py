"""Training logs: what any tool wrote about a run, read into one form."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_names

__all__ = [
    "COLUMNS",
    "UNITS",
    "Log",
    "LogTable",
    "Logs",
    "final_losses",
    "final_training_loss",
    "find_log",
    "read_log",
    "read_logs",
]
if TYPE_CHECKING:
    from toposcope.logs.log import UNITS, Log, final_losses, final_training_loss
    from toposcope.logs.reading import Logs, find_log, read_log, read_logs
    from toposcope.logs.table import COLUMNS, LogTable

# Polars is imported when a log is read: the doctor can mostly do without.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("UNITS", "Log", "final_losses", "final_training_loss"), "toposcope.logs.log"),
        **dict.fromkeys(("Logs", "read_log", "read_logs"), "toposcope.logs.reading"),
        **dict.fromkeys(("COLUMNS", "LogTable"), "toposcope.logs.table"),
        "find_log": "toposcope.logs.reading",
    },
)
