"""The charts of early stopping say what the tables say."""

import numpy as np
import polars as pl
import pytest
from named_features import by_feature

from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.chart import Chart
from toposcope_experiments.early_stopping.chart import SHORT, early_stopping_charts
from toposcope_experiments.early_stopping.early_stopping import EarlyStopping, early_stopping
from toposcope_experiments.early_stopping.stopping_rules import FRACTION

PLACES = np.arange(51)


def found(n_runs: int = 20) -> EarlyStopping:
    """Runs that fall until a step of their own, where patience on the loss is right and neural persistence wrong."""
    ends = np.linspace(12, 40, n_runs).round()
    runs = [
        Trajectory(
            f"run-{i}",
            PLACES * 100,
            by_feature({"neural_persistence np_normalized": 0.3 + 0.01 * np.minimum(PLACES, ends[-1 - i])}),
            {"validation_loss": 3 - 0.05 * np.minimum(PLACES, end)},
            {"step": np.asarray(PLACES * 100.0)},
        )
        for i, end in enumerate(ends)
    ]
    frame = pl.DataFrame({"run": [t.run for t in runs], "n_parameters": 10, "status": "complete", "last_step": 5000})
    log = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "flops": pl.Float64})
    return early_stopping(runs, log, frame, lambda run, step: 0.5 * (1 - step / 5000) ** 2)


def drawn(of: EarlyStopping) -> tuple[Chart, Chart]:
    paid, difference = early_stopping_charts(of)
    return paid, difference


@pytest.fixture(scope="module")
def charts() -> tuple[Chart, Chart]:
    return drawn(found())


@pytest.mark.slow
def test_the_charts_are_the_same_again(charts: tuple[Chart, Chart]) -> None:
    for chart, again in zip(charts, drawn(found()), strict=True):
        assert chart.render("svg") == again.render("svg")


def test_the_title_is_the_answer(charts: tuple[Chart, Chart]) -> None:
    for chart in charts:
        assert chart.title.startswith("Patience on the loss is better and patience on neural persistence")
        assert chart.title.endswith("worse than a fixed fraction that saves as much")
        assert "Means over 20 runs" in chart.caption
    assert drawn(found(3))[0].title == (
        "No rule is shown to be better or worse than a fixed fraction that saves as much, which so few runs cannot show"
    )


def test_every_setting_is_a_mark(charts: tuple[Chart, Chart]) -> None:
    table = found().matched
    for chart, column in zip(charts, ("paid", "difference"), strict=True):
        rows = [row for rows in chart.spec()["datasets"].values() for row in rows if "rule" in row]
        for rule in set(SHORT) - {FRACTION}:
            points = sorted((row["saved"], row[column]) for row in rows if row["rule"] == SHORT[rule])
            assert points == sorted(table.filter(rule=rule).select("saved", column).rows())
    assert any(
        row["rule"] == SHORT[FRACTION]
        for rows in charts[0].spec()["datasets"].values()
        for row in rows
        if "rule" in row
    )


def test_without_a_rule_there_is_no_chart() -> None:
    assert early_stopping_charts(found(0)) == []
