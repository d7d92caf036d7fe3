"""The sections of a study's report: one file each, with its tables, charts and sentences; discovered automatically.

Another package adds sections by the entry point ``toposcope.sections``, a module with a `SECTION`.
"""

from functools import cache

from toposcope.report.section import ReportSection, collect_sections
from toposcope.report.study_data import StudyData


@cache
def report_sections() -> tuple[ReportSection[StudyData], ...]:
    """Return every section in the order of the page."""
    return collect_sections(__name__, "toposcope.sections")
