"""Forecasts: the final loss of a run, scaling laws, and whether to continue a run or to train a larger one."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_names

__all__ = ["backtest", "decide", "forecast", "plan", "scaling_law"]

if TYPE_CHECKING:
    from toposcope.forecasting.backtesting import backtest
    from toposcope.forecasting.decision.advice import decide
    from toposcope.forecasting.forecast_report import forecast
    from toposcope.forecasting.scaling.planner import plan
    from toposcope.forecasting.scaling.scaling_law import scaling_law

# So that `import toposcope.forecasting` is quick.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "backtest": "toposcope.forecasting.backtesting",
        "decide": "toposcope.forecasting.decision.advice",
        "forecast": "toposcope.forecasting.forecast_report",
        "plan": "toposcope.forecasting.scaling.planner",
        "scaling_law": "toposcope.forecasting.scaling.scaling_law",
    },
)
