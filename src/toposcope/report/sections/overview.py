"""The study at a glance: one figure."""

from toposcope.report.figures.overview import overview
from toposcope.report.section import ReportSection

SECTION = ReportSection(
    anchor="overview", title="At a glance", position=10, charts=(overview,), compared_charts=(overview,)
)
