"""The charts of a backtest show its scores, and say what the default does."""

import polars as pl
import pytest

from toposcope_experiments.backtest.backtesting import SCORES
from toposcope_experiments.backtest.page import backtest_charts
from toposcope_experiments.backtest.result import BacktestData, BacktestResult

NAMES = ("default", "last", "power_law", "s1", "s1_anneal", "annealing", "cooldown", "median", "multi_power", "<b>")


def material(fractions: tuple[float, ...] = (0.1, 0.3, 0.7), first_error: float = 0.01) -> BacktestData:
    rows = [
        {
            **dict.fromkeys(SCORES, 0.1), "fraction": f, "forecaster": name, "n": 20, "refused": 0,
            "relative_median": first_error * (1 - f) * (1 + i), "relative_p90": 0.03 * (1 - f) * (1 + i),
            "coverage": 0.9 - 0.01 * i, "width": 0.05 * (1 + i),
        }
        for f in fractions
        for i, name in enumerate(NAMES)
    ]  # fmt: skip
    scores = pl.DataFrame(rows, schema=SCORES)
    return BacktestData(BacktestResult(scores, "size", "nats", (), scores, scores, scores))


@pytest.mark.slow
@pytest.mark.parametrize("fractions", [(0.1, 0.3, 0.7), (0.5,)])
def test_every_forecaster_is_drawn_and_named(fractions: tuple[float, ...]) -> None:
    charts = backtest_charts(material(fractions))
    names = ["relative-median", "relative-p90", "coverage", "width"]
    assert [chart.name for chart in charts] == [f"backtest-{name}" for name in names]
    for chart in charts:
        frames = [pl.DataFrame(each) for each in chart.spec()["datasets"].values()]
        (lines,) = (frame for frame in frames if frame.columns == ["forecaster", "seen", "value"])
        (ends,) = (frame for frame in frames if "place" in frame.columns)
        assert lines.height == len(NAMES) * len(fractions)
        assert set(ends["forecaster"]) == set(NAMES)
        assert ends["place"].n_unique() == len(NAMES)
        assert chart.render("svg")
        assert b"<b>" not in chart.render("svg")


def test_titles_are_of_the_default() -> None:
    median, _, coverage, width = backtest_charts(material())
    assert median.title == "Median error of the default: 0.9% with 10% of a run seen, 0.3% with 70%"
    assert coverage.title.endswith("90% with 10% of a run seen, 90% with 70%")
    assert width.title.endswith("5% with 10% of a run seen, 5% with 70%")


def test_errors_of_zero_and_no_scores() -> None:
    assert len(backtest_charts(material(first_error=0.0))) == 3, "zero has no place on a logarithmic axis"
    assert backtest_charts(material(())) == []


def test_percentages_of_three_digits_and_more_are_written_out() -> None:
    median, *_ = backtest_charts(material((0.0, 0.5), first_error=20.0))
    assert median.title == "Median error of the default: 2,000% with 0% of a run seen, 1,000% with 50%"
    median, *_ = backtest_charts(material((0.0,), first_error=1.0))
    assert median.title.endswith(": 100% with 0% of a run seen")
