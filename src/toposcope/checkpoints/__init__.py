"""Where weights come from: formats, steps, layer roles. Always lazy: one tensor at a time, never the model's class."""

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.decay import decay_weights
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.series import Series, series
from toposcope.checkpoints.sources import Access
from toposcope.checkpoints.steps import Selection

__all__ = ["Access", "Checkpoint", "Layer", "Selection", "Series", "decay_weights", "series"]


def __dir__() -> list[str]:
    return sorted(__all__)
