"""`toposcope.forecasting` exports functions; they take what the commands take, and their results show themselves."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import toposcope
from toposcope import forecasting
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.logs import read_log

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)
STEPS = np.arange(20, 2001, 20)


def write_log(path: Path, level: float, share: float = 1.0) -> Path:
    steps = STEPS[share * STEPS[-1] >= STEPS]
    loss = level + 3 * steps**-0.3
    columns = {"step": steps, "loss": loss, "lr": np.full(len(steps), 1e-3), "max_steps": np.full(len(steps), 2000)}
    pl.DataFrame(columns).write_csv(path)
    return path


@pytest.fixture(scope="module")
def points() -> Points:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e7, 2e9, 5), np.geomspace(4e9, 1e11, 4)))
    return Points(N, D, LAW.loss(N, D))


def test_each_name_is_a_function() -> None:
    assert forecasting.__all__ == ["decide", "forecast", "plan", "scaling_law"]
    assert dir(forecasting) == forecasting.__all__
    assert all(callable(getattr(forecasting, name)) for name in forecasting.__all__)
    assert toposcope.forecast is forecasting.forecast
    assert toposcope.decide is forecasting.decide
    with pytest.raises(AttributeError, match="no attribute 'forecats'"):
        _ = forecasting.forecats


def test_a_forecast_from_a_path_is_that_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for i in range(3):
        write_log(tmp_path / "runs" / f"run-{i}.csv", 2 + 0.1 * i)
    now = write_log(tmp_path / "now.csv", 2.5, share=0.4)
    report = forecasting.forecast(now, siblings=tmp_path / "runs")
    again = forecasting.forecast(read_log(now), siblings=str(tmp_path / "runs"))
    assert (report.loss, report.interval) == (again.loss, again.interval)
    assert report.interval[0] < report.loss < report.interval[1]
    assert len(report.siblings) == 3
    assert repr(report) == f"<ForecastReport of now: {report.headline()}>"
    assert report.to_dict()["default"] == report.chosen


def test_law_plan_and_decision_are_of_one_fit(points: Points, tmp_path: Path) -> None:
    fitted = forecasting.scaling_law(points, resamples=20)
    assert fitted.law.alpha == pytest.approx(LAW.alpha, rel=1e-3)
    plan = forecasting.plan(fitted, 1e21)
    table = tmp_path / "points.csv"
    pl.DataFrame({"N": points.N, "D": points.D, "loss": points.loss}).write_csv(table)
    advice = forecasting.decide(table, budget=1e21, resamples=20)
    assert advice.plan.N.value == pytest.approx(plan.N.value)
    assert repr(advice).startswith("<Advice: ")
    going_on = forecasting.decide(points, extra=1e17, parameters=1e8, tokens=1e10, resamples=20)
    assert repr(going_on).startswith("<Advice: continue, probability that scaling wins 0.0")
