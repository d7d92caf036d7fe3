"""Alerts: faults of a run, detected as it trains, at a stated rate of false alarms."""

from toposcope.monitor.alerts.alerts import Alerts
from toposcope.monitor.alerts.rates import FALSE_ALARM_RATE

__all__ = ["FALSE_ALARM_RATE", "Alerts"]


def __dir__() -> list[str]:
    return sorted(__all__)
