"""The sections of a study's report: one file each, with its tables, charts and sentences; discovered automatically.

Another package adds sections by the entry point ``toposcope.sections``, a module with a `SECTION`.
"""

from functools import cache
from types import ModuleType

from toposcope.plugins import collect
from toposcope.report.material import Material
from toposcope.report.section import ReportSection


@cache
def report_sections() -> tuple[ReportSection[Material], ...]:
    """Return every section in the order of the page."""
    return tuple(sorted(collect(__name__, "toposcope.sections", _section_of).values(), key=lambda s: s.position))


def _section_of(module: ModuleType) -> dict[str, ReportSection[Material]]:
    section = getattr(module, "SECTION", None)
    return {section.anchor: section} if isinstance(section, ReportSection) else {}
