"""The figure of a forecast says what the forecast says, and can be read."""

import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

from toposcope.forecasting import forecast as forecast_run
from toposcope.forecasting.forecast_report import ForecastReport
from toposcope.forecasting.siblings import siblings_among
from toposcope.logs import Log, Logs
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH, Chart
from toposcope.report.figures.forecast import _apart, forecast_chart
from toposcope.report.rendering import render

LAST = 3000


def log(name: str, share: float, level: float = 3.0, every: int = 10, seed: int = 0) -> Log:
    t = np.arange(every, round(share * LAST) + 1, every)
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * t / LAST))
    loss = level + 8 * t**-0.45 - 0.2 * (1 - rate) + np.random.default_rng(seed).normal(0, 0.004, len(t))
    loss[len(t) // 2] += 3  # a spike
    return Log(name, t.astype(np.int64), loss, rate, last_step=LAST, parameters=1e8 + 1e7 * (seed % 3))


def drawn(report: ForecastReport) -> Chart:
    with mpl.rc_context(STYLE):
        return forecast_chart(report)


@pytest.fixture(scope="module")
def report() -> ForecastReport:
    mine = log("mine", 0.4)
    others = tuple(log(f"s{i}", 1, 2.8 + 0.05 * i, seed=i + 1) for i in range(14))
    return forecast_run(mine, siblings=siblings_among(mine, Logs(others, ())))


def test_it_can_be_read_and_is_the_same_again(report: ForecastReport) -> None:
    figure = drawn(report)
    assert render(figure.figure, STYLE, REPRODUCIBLE_METADATA) == render(
        drawn(report).figure, STYLE, REPRODUCIBLE_METADATA
    )
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", figure.caption + figure.alt), figure.caption
    box = figure.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1, figure.figure.get_figheight() - box.y1) > -0.02
    for text in figure.figure.findobj(Text):
        assert not text.get_text().strip() or float(text.get_fontsize()) >= SMALL, text


def test_it_shows_what_was_foretold(report: ForecastReport) -> None:
    figure = drawn(report)
    believed = report.default
    assert believed is not None
    assert report.results is not None
    assert figure.caption.startswith(f"Final loss {believed.loss:.{report.digits}f} nats (90%: ")
    assert "the 12 of 14 siblings nearest" in figure.caption
    loss, rate = figure.figure.axes
    named = {text.get_text().split()[0] for text in loss.texts}
    assert named == set(report.results.forecasts) - {"default"}
    low, high = loss.get_ylim()
    assert low < believed.low < believed.high < high
    ends = [float(np.ravel(line.get_ydata())[0]) for line in loss.lines if line.get_marker() == "_"]
    assert believed.loss in ends
    assert rate.get_xlim() == (0, LAST)


def test_a_complete_run_and_one_point() -> None:
    done = drawn(forecast_run(log("done", 1)))
    assert done.caption.startswith("The run is complete")
    assert render(done.figure, STYLE, REPRODUCIBLE_METADATA)["png"]
    one = forecast_run(Log("one", np.array([1]), np.array([3.0]), np.array([np.nan])), last_step=10)
    assert render(drawn(one).figure, STYLE, REPRODUCIBLE_METADATA)["png"]


def test_names_are_moved_apart_in_order() -> None:
    wanted = np.array([0.0, 0.0, 0.01, 0.5, 0.99, 1.0, 1.0])
    placed = _apart(wanted)
    assert (np.diff(placed) >= 0.0519).all()
    assert placed[0] >= 0
    assert placed[-1] <= 1
    assert placed[3] == pytest.approx(0.5)
