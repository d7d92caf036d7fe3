"""Charts of single objects and the house theme: arrays and frames in, Altair charts out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Chart", "distance_matrix"]

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.charts.distances import distance_matrix

_MODULES = {"Chart": "chart", "distance_matrix": "distances"}


def __getattr__(name: str) -> Any:
    # Altair is imported on first use, so that `import toposcope` is quick.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
