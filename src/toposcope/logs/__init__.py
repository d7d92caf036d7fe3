"""Training logs: what any tool wrote about a run, read into one form."""

from toposcope.logs.beside import log_beside
from toposcope.logs.log import UNITS, Log, final_losses, final_training_loss
from toposcope.logs.reading import Logs, read_log, read_logs
from toposcope.logs.table import COLUMNS, LogTable

__all__ = [
    "COLUMNS",
    "UNITS",
    "Log",
    "LogTable",
    "Logs",
    "final_losses",
    "final_training_loss",
    "log_beside",
    "read_log",
    "read_logs",
]


def __dir__() -> list[str]:
    return sorted(__all__)
