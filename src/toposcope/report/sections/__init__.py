"""The sections of a study's report: one file each, with its tables, charts and sentences; found by themselves.

Another package adds sections by the entry point ``toposcope.sections``, a module with a `SECTION`.
"""

from collections.abc import Mapping
from functools import cache
from types import ModuleType

from toposcope.errors import ToposcopeError
from toposcope.plugins import collect
from toposcope.report.material import Material, TableMaker
from toposcope.report.section import ReportSection


@cache
def report_sections() -> tuple[ReportSection[Material], ...]:
    """Return every section in the order of the page."""
    return tuple(sorted(collect(__name__, "toposcope.sections", _section_of).values(), key=lambda s: s.position))


@cache
def table_makers() -> Mapping[str, TableMaker]:
    """Return what computes each table of a report, by the table's name.

    Raises
    ------
    ToposcopeError
        If two sections make a table of one name.
    """
    makers: dict[str, TableMaker] = {}
    for section in report_sections():
        for name, make in section.tables.items():
            if name in makers:
                raise ToposcopeError(f"section {section.anchor}: another section already makes the table {name!r}")
            makers[name] = make
    return makers


def _section_of(module: ModuleType) -> dict[str, ReportSection[Material]]:
    section = getattr(module, "SECTION", None)
    return {section.anchor: section} if isinstance(section, ReportSection) else {}
