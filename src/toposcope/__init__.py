"""Toposcope: an instrument for the topology of language-model training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toposcope.version import __version__

__all__ = [
    "Monitor",
    "Study",
    "ToposcopeError",
    "__version__",
    "decide",
    "doctor",
    "forecast",
    "homology",
    "measure",
    "neural_persistence",
    "plot_series",
    "rips",
    "series",
]

if TYPE_CHECKING:
    from toposcope import homology
    from toposcope.checkpoints import series
    from toposcope.errors import ToposcopeError
    from toposcope.forecasting import decide, forecast
    from toposcope.homology import neural_persistence, rips
    from toposcope.integrity import doctor
    from toposcope.monitor.monitor import Monitor
    from toposcope.study import Study, measure
    from toposcope.study.plotting import plot_series

_HOMES = {
    "Monitor": "toposcope.monitor.monitor",
    "Study": "toposcope.study",
    "ToposcopeError": "toposcope.errors",
    "decide": "toposcope.forecasting",
    "doctor": "toposcope.integrity",
    "forecast": "toposcope.forecasting",
    "measure": "toposcope.study",
    "neural_persistence": "toposcope.homology",
    "plot_series": "toposcope.study.plotting",
    "rips": "toposcope.homology",
    "series": "toposcope.checkpoints",
}


def __getattr__(name: str) -> Any:
    # Names are fetched on first use, so that `import toposcope` does not import torch or numba.
    if name == "homology":
        return import_module("toposcope.homology")
    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
