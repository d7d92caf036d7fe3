"""How alike hidden states are: between layers, and between checkpoints."""

from toposcope.report.charts.series import direction_of
from toposcope.report.charts.similarity import checkpoint_similarity_charts, layer_similarity_charts
from toposcope.report.material import Material
from toposcope.report.section import ReportSection

FIRST = "cka.first"
"""The statistic that compares a checkpoint's last hidden state with that of the first checkpoint."""


def _finding(material: Material) -> str:
    """Say whether hidden states move away from those of the first checkpoint."""
    features = dict.fromkeys(f for t in material.trajectories for f in t.features if f.statistic == FIRST)
    for feature in features:
        return f"CKA of hidden states with the first checkpoint {direction_of(material.trajectories, feature)}"
    return ""


SECTION = ReportSection(
    anchor="similarity",
    title="Similarity",
    position=70,
    charts=(layer_similarity_charts, checkpoint_similarity_charts),
    finding=_finding,
)
