"""A backtest's page and its sections, one file each; another package adds one by `toposcope.backtest_sections`."""

from functools import cache
from pathlib import Path

from toposcope.logs.formats.study import claims
from toposcope.progress import Progress, silent
from toposcope.report.backtest import BacktestMaterial, BacktestResult
from toposcope.report.composing import Page, makers_of
from toposcope.report.section import ReportSection, collect_sections
from toposcope.study import Study


@cache
def backtest_sections() -> tuple[ReportSection[BacktestMaterial], ...]:
    """Return every section of a backtest's page."""
    return collect_sections(__name__, "toposcope.backtest_sections")


def backtest_page(
    backtest: BacktestResult, data: Path, *, workers: int | None = None, progress: Progress = silent
) -> Page[BacktestMaterial]:
    """Return the page of a backtest."""
    sections = backtest_sections()
    study = Study.load(data if data.is_dir() else data.parent) if claims(data) else None
    return Page(sections, BacktestMaterial(backtest, makers_of(sections), study, workers=workers, progress=progress))
