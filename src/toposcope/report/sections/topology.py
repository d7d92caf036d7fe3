"""Topology over training: persistence of weights and gradients, and how fast diagrams move."""

from toposcope.report.figures.change import change_rate_chart
from toposcope.report.figures.diagrams import crocker_chart, diagram_chart
from toposcope.report.figures.training import gradient_chart, topology_chart
from toposcope.report.section import ReportSection

SECTION = ReportSection(
    anchor="topology",
    title="Topology over training",
    position=40,
    charts=(topology_chart, change_rate_chart, diagram_chart, crocker_chart, gradient_chart),
    compared_charts=(topology_chart, change_rate_chart),
)
