"""Where weights come from: formats, steps, layer roles. Always lazy: one tensor at a time, never the model's class."""

from toposcope.checkpoints.checkpoint import Checkpoint, Layer
from toposcope.checkpoints.series import Series, series

__all__ = ["Checkpoint", "Layer", "Series", "series"]
