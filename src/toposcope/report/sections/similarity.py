"""Similarity of hidden states between layers and between checkpoints."""

from toposcope.report.figures.similarity import checkpoint_similarity_chart, layer_similarity_chart
from toposcope.report.section import ReportSection

SECTION = ReportSection(
    anchor="similarity", title="Similarity", position=70, charts=(layer_similarity_chart, checkpoint_similarity_chart)
)
