"""Forecasts: the final loss of a run, scaling laws, and whether to continue a run or to train a larger one."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["decide", "forecast", "plan", "scaling_law"]

if TYPE_CHECKING:
    from toposcope.forecasting.decision.advice import decide
    from toposcope.forecasting.forecast_report import forecast
    from toposcope.forecasting.scaling.planner import plan
    from toposcope.forecasting.scaling.scaling_law import scaling_law

# So that `import toposcope.forecasting` is quick.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
