"""The chart of a forecast shows what the forecast says, at any length of log."""

import re

import numpy as np
import polars as pl
import pytest
from broken_runs import RISEN_KINDS, risen

from toposcope.analysis.health import health
from toposcope.charts.chart import Chart
from toposcope.charts.forecast import MAX_POINTS, MAX_RAW_POINTS, binned_medians
from toposcope.forecasting import forecast as forecast_run
from toposcope.forecasting.forecast_report import ForecastReport, loss_chart
from toposcope.forecasting.siblings import siblings_among
from toposcope.logs import Logs, Run

LAST = 3000


def log(name: str, share: float, level: float = 3.0, every: int = 10, seed: int = 0, last: int = LAST) -> Run:
    t = np.arange(every, round(share * last) + 1, every)
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * t / last))
    loss = level + 8 * t**-0.45 - 0.2 * (1 - rate) + np.random.default_rng(seed).normal(0, 0.004, len(t))
    loss[len(t) // 2] += 3  # a spike
    return Run(name, t.astype(np.int64), loss, rate, last_step=last, parameters=1e8 + 1e7 * (seed % 3))


def rows(chart: Chart, *fields: str) -> pl.DataFrame:
    """Return the one data set with these fields."""
    (found,) = (each for each in chart.spec()["datasets"].values() if set(each[0]) == set(fields))
    return pl.DataFrame(found)


def loss_domain(chart: Chart) -> tuple[float, float]:
    low, high = re.findall(r'"domain": \[([-\d.e]+), ([-\d.e]+)\], "nice": false, "range": \[290, 0\]', as_text(chart))[
        0
    ]
    return float(low), float(high)


def as_text(chart: Chart) -> str:
    import json

    return json.dumps(chart.spec(), sort_keys=True)


@pytest.fixture(scope="module")
def report() -> ForecastReport:
    current = log("current", 0.4)
    others = tuple(log(f"<s{i}>", 1, 2.8 + 0.05 * i, seed=i + 1) for i in range(14))
    return forecast_run(current, siblings=siblings_among(current, Logs(others, ())))


@pytest.mark.slow
def test_it_shows_the_forecast(report: ForecastReport) -> None:
    chart, default = report.plot(), report.default
    assert default is not None
    assert report.results is not None
    assert chart.title.startswith(f"Training loss ends at {default.loss:.{report.digits}f} (90%: ")
    assert "12 siblings" in chart.caption
    assert chart.caption.count(". ") <= 1
    ends = rows(chart, "forecaster", "loss", "at", "label", "place")
    assert set(ends["forecaster"]) == set(report.results.forecasts) - {"default"}
    low, high = loss_domain(chart)
    assert low < default.low < default.high < high
    assert high < 5, "neither the first fall nor the spike is in the way"
    gaps = ends.sort("place")["place"].diff().drop_nulls() / (high - low) * 290
    assert (gaps > 14.9).all(), "names do not touch"
    assert ends.sort("loss")["place"].is_sorted()
    curve = rows(chart, "step", "loss", "low", "high")
    assert curve["step"].max() == LAST
    rates = rows(chart, "step", "rate", "planned")
    assert rates.filter(pl.col("planned"))["step"].min() == rates.filter(~pl.col("planned"))["step"].max() == 1200
    assert chart.render("svg") == report.plot().render("svg")


def test_a_long_log_is_drawn_small() -> None:
    chart = forecast_run(log("long", 0.5, every=1, last=60_000)).plot()
    sizes = sorted(len(each) for each in chart.spec()["datasets"].values())
    assert MAX_POINTS in sizes
    assert sizes[-1] <= MAX_RAW_POINTS
    assert len(chart.render("svg")) < 150_000
    assert "medians" in chart.caption


@pytest.mark.parametrize("kind", RISEN_KINDS)
@pytest.mark.parametrize("n", [40, 1000])
def test_nothing_is_cut_off_but_the_first_fall(kind: str, n: int) -> None:
    """Of training and validation alike: the rise that the page speaks of can be seen."""
    run = risen(0, kind, 0.01, n)
    low, high = loss_domain(loss_chart(run, health(run)))
    for steps, losses in [(run.steps, run.loss), *([run.validation] if run.validation is not None else [])]:
        _, smooth = binned_medians(steps.astype(float), losses)
        assert low < smooth.min()
        assert smooth[int(smooth.argmin()) :].max() < high
        assert losses[-1] < high


@pytest.mark.parametrize("row", [60, 99])
def test_a_spike_is_shown_where_the_run_is_said_to_have_spiked(row: int) -> None:
    steps = np.arange(10, 1001, 10)
    losses = 2 + 3 * (steps / 10) ** -0.5
    losses[row] = 9.0
    run = Run("spiked", steps, losses, np.full(100, np.nan))
    spoken_of = health(run).word == "Loss spiked"
    assert spoken_of == (row == 99)
    assert (loss_domain(loss_chart(run, health(run)))[1] > 9) == spoken_of


@pytest.mark.slow
def test_a_complete_run_and_one_point() -> None:
    done = forecast_run(log("done", 1)).plot()
    assert done.title.startswith("The run is complete")
    assert "dashed" not in done.caption
    assert done.render("png")
    one = forecast_run(Run("one", np.array([1]), np.array([3.0]), np.array([np.nan])), last_step=10).plot()
    assert one.render("png")
    assert not re.search(r"\bnan\b|None|\binf\b", one.title + one.caption + one.alt)
