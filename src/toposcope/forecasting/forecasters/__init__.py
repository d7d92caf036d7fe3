"""Forecasters of the final loss, found by themselves.

A module of this package, or one that another package names as an entry point of the group ``toposcope.forecasters``,
adds its forecasters by a tuple ``FORECASTERS`` of them.
"""

from functools import cache
from types import ModuleType

from toposcope.forecasting.forecaster import Forecaster
from toposcope.plugins import collect

__all__ = ["forecasters"]


@cache
def forecasters() -> tuple[Forecaster, ...]:
    """Return all forecasters, in the order of their modules."""
    return tuple(collect(__name__, "toposcope.forecasters", _forecasters_of).values())


def _forecasters_of(module: ModuleType) -> dict[str, Forecaster]:
    return {forecaster.name: forecaster for forecaster in getattr(module, "FORECASTERS", ())}
