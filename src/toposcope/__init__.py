"""Toposcope: an instrument for the topology of language-model training."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports
from toposcope.version import __version__

__all__ = [
    "Monitor",
    "Study",
    "SweepPruner",
    "SweepScheduler",
    "ToposcopeError",
    "__version__",
    "cooldown",
    "correlations",
    "decide",
    "doctor",
    "dowker",
    "forecast",
    "homology",
    "landscape",
    "layer_topology",
    "measure",
    "merge",
    "neural_persistence",
    "plot_series",
    "read_log",
    "report",
    "rips",
    "series",
]

if TYPE_CHECKING:
    from toposcope import homology, report
    from toposcope import torch as torch  # not in __all__: a star would hide PyTorch
    from toposcope.analysis.correlations import correlations
    from toposcope.charts.measured import plot_series
    from toposcope.checkpoints import series
    from toposcope.checkpoints.merging import merge
    from toposcope.errors import ToposcopeError
    from toposcope.forecasting import decide, forecast
    from toposcope.forecasting.cooldown_reading import cooldown
    from toposcope.forecasting.sweeps.optuna_pruner import SweepPruner
    from toposcope.forecasting.sweeps.ray_scheduler import SweepScheduler
    from toposcope.homology import dowker, neural_persistence, rips
    from toposcope.integrity import doctor
    from toposcope.logs import read_log
    from toposcope.monitor.monitor import Monitor
    from toposcope.probes.layer_topology import layer_topology
    from toposcope.study import Study, measure
    from toposcope.study.landscapes import landscape

# So that `import toposcope` does not import torch or numba.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
