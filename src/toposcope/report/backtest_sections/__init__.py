"""The sections of a backtest's page, one file each; another package adds one by `toposcope.backtest_sections`."""

from functools import cache
from types import ModuleType

from toposcope.plugins import collect
from toposcope.report.backtest import BacktestMaterial
from toposcope.report.section import ReportSection


@cache
def backtest_sections() -> tuple[ReportSection[BacktestMaterial], ...]:
    """Return every section of a backtest's page."""
    return tuple(collect(__name__, "toposcope.backtest_sections", _section_of).values())


def _section_of(module: ModuleType) -> dict[str, ReportSection[BacktestMaterial]]:
    section = getattr(module, "SECTION", None)
    return {section.anchor: section} if isinstance(section, ReportSection) else {}
