"""The isoFLOP chart shows the law, its best sizes and the runs, and says what the plan says."""

import numpy as np
import polars as pl
import pytest

from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.figure import isoflop_figure
from toposcope.forecasting.scaling.planner import plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law
from toposcope.wording import short

LAW = ScalingLaw(1.8, 400, 2000, 0.34, 0.37)


@pytest.fixture(scope="module")
def fitted() -> FittedScalingLaw:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(1e9, 3e11, 6)))
    loss = LAW.loss(N, D) * np.exp(np.random.default_rng(0).normal(0, 4e-3, len(N)))
    return scaling_law(Points(N, D, loss), resamples=100)


def best_sizes(chart: Chart) -> pl.DataFrame:
    (frame,) = (
        pl.DataFrame(each) for each in chart.spec()["datasets"].values() if each and len(each) <= 5 and "N" in each[0]
    )
    return frame


def test_the_title_is_the_plan(fitted: FittedScalingLaw) -> None:
    far = plan(fitted, 1e24)
    chart = isoflop_figure(fitted, far)
    assert chart.title == f"With 1e24 FLOP the best model has {short(far.N.value)} parameters"
    best = best_sizes(chart)
    assert best["budget"].to_list()[-1] == "1e24 (planned)"
    assert best["N"].to_list()[-1] == pytest.approx(far.N.value)
    assert best["N"].is_sorted()
    assert len(best) == 5
    assert chart.render("svg") == isoflop_figure(fitted, far).render("svg")


def test_without_a_plan_and_without_a_bootstrap(fitted: FittedScalingLaw) -> None:
    alone = isoflop_figure(fitted)
    assert alone.title.startswith("Compute-optimal parameters grow as C^0.5")
    assert "intervals" in alone.caption
    bare = isoflop_figure(FittedScalingLaw(fitted.law, (), {}, 0.0, fitted.points))
    assert "intervals" not in bare.caption
    assert bare.render("png")
