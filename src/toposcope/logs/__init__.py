"""Training logs: what any tool wrote about a run, read into one form."""

from toposcope.logs.log import UNITS, Log
from toposcope.logs.reading import Logs, read_log, read_logs

__all__ = ["UNITS", "Log", "Logs", "read_log", "read_logs"]
