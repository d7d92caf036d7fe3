"""The sections of a backtest's page; another package adds one by `toposcope.backtest_sections`."""

from functools import cache

from toposcope.report.backtest import BacktestMaterial
from toposcope.report.section import ReportSection, collect_sections


@cache
def backtest_sections() -> tuple[ReportSection[BacktestMaterial], ...]:
    """Return every section of a backtest's page."""
    return collect_sections(__name__, "toposcope.backtest_sections")
