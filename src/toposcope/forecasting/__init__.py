"""Forecasts: the final loss of a run, scaling laws, and whether to continue a run or to train a larger one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["backtest", "decide", "forecast", "plan", "scaling_law"]

if TYPE_CHECKING:
    from toposcope.forecasting.backtesting import backtest
    from toposcope.forecasting.decision.advice import decide
    from toposcope.forecasting.forecast_report import forecast
    from toposcope.forecasting.scaling.planner import plan
    from toposcope.forecasting.scaling.scaling_law import scaling_law

_MODULES = {
    "backtest": "backtesting",
    "decide": "decision.advice",
    "forecast": "forecast_report",
    "plan": "scaling.planner",
    "scaling_law": "scaling.scaling_law",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `import toposcope.forecasting` is quick.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
