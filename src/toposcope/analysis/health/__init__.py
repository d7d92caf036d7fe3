"""Whether a run is healthy: one judge, which every command and page prints."""

from toposcope.analysis.health.check import Check, Health
from toposcope.analysis.health.judge import health

__all__ = ["Check", "Health", "health"]
