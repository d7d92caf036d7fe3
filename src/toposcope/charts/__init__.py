"""Charts of single objects and the house theme: arrays and frames in, Altair charts out."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["Chart", "plot_series"]

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.charts.measured import plot_series

# Altair is imported on first use, so that `import toposcope` is quick.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
