"""One statistic of a series over training, measured when it is drawn."""

import json
from pathlib import Path

import pytest
from small_studies import write_series

import toposcope as ts
from toposcope.charts import Chart
from toposcope.errors import ToposcopeError

STEPS = [0, 10, 20]


def drawn(chart: Chart) -> dict[int, float]:
    """Return the values of a chart by step."""
    return {row["step"]: row["value"] for rows in chart.spec()["datasets"].values() for row in rows}


@pytest.mark.parametrize("statistic", ["np_mean", "H0.total", "frobenius_norm", "H0.bottleneck"])
def test_a_series_draws_what_measure_measures(tmp_path: Path, statistic: str) -> None:
    series = ts.series(write_series(tmp_path / "run", STEPS))
    frame = ts.measure(series).filter(layer="network", statistic=statistic)
    assert len(frame) >= 2
    chart = ts.plot_series(series, statistic)
    assert drawn(chart) == dict(frame.select("step", "value").iter_rows())
    first, last = frame["value"][0], frame["value"][-1]
    assert f"{statistic} of run {'rises' if last > first else 'falls'} from " in chart.title


def test_a_probe_can_be_named(tmp_path: Path) -> None:
    series = ts.series(write_series(tmp_path / "run", STEPS))
    pooled = [{"name": "rips", "pooled": True}]
    frame = ts.measure(series, probes=pooled).filter(layer="pooled", statistic="H0.total")
    assert drawn(ts.plot_series(series, "H0.total", probes=pooled)) == dict(frame.select("step", "value").iter_rows())


def test_an_unknown_statistic_is_answered_with_the_one_meant(tmp_path: Path) -> None:
    series = ts.series(write_series(tmp_path / "run", STEPS))
    with pytest.raises(ToposcopeError, match="did you mean 'np_mean'"):
        ts.plot_series(series, "np_meen")
    with pytest.raises(ToposcopeError, match="no checkpoints"):
        ts.plot_series(series[:0], "np_mean")


def test_one_checkpoint_and_a_hostile_name(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>".replace("/", "_") + "'\"&{{x}}"
    chart = ts.plot_series(ts.series(write_series(tmp_path / name, [5])), "np_mean")
    assert chart.title == f"np_mean of {name}"
    json.dumps(chart.spec(), allow_nan=False)
    assert "<script" not in chart.render("svg").decode()
