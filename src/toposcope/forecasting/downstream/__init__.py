"""Scores of tasks that larger models will reach, from a ladder of small ones."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["DownstreamReport", "Model", "downstream"]

if TYPE_CHECKING:
    from toposcope.forecasting.downstream.predicted import Model
    from toposcope.forecasting.downstream.prediction import DownstreamReport, downstream

# So that `import toposcope.forecasting` is quick.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
