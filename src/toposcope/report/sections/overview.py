"""The study at a glance: one figure."""

from toposcope.report.figures.overview import overview_chart
from toposcope.report.section import ReportSection

SECTION = ReportSection(
    anchor="overview", title="At a glance", position=10, charts=(overview_chart,), compared_charts=(overview_chart,)
)
