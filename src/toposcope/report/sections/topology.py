"""Topology over training: persistence of weights and gradients, and how fast diagrams move."""

from toposcope.report.figures.change import rate
from toposcope.report.figures.diagrams import crocker, diagrams
from toposcope.report.figures.training import gradients, topology
from toposcope.report.section import ReportSection

SECTION = ReportSection(
    anchor="topology",
    title="Topology over training",
    position=40,
    charts=(topology, rate, diagrams, crocker, gradients),
    compared_charts=(topology, rate),
)
