"""The page of a forecast: the chart, every forecaster, what was read and assumed."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from read_page import read

from toposcope.forecasting import forecast
from toposcope.logs import Run
from toposcope.report.forecast import write_forecast


def log(name: str, share: float) -> Run:
    t = np.arange(10, round(3000 * share) + 1, 10)
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * t / 3000))
    loss = 3 + 8 * t**-0.45 - 0.2 * (1 - rate) + np.random.default_rng(0).normal(0, 0.004, len(t))
    return Run(name, t.astype(np.int64), loss, rate, last_step=3000)


@pytest.mark.slow
def test_the_page_holds_chart_forecasters_and_remarks(tmp_path: Path) -> None:
    report = forecast(log("<script>x</script>", 0.4))
    page = write_forecast(tmp_path, report)
    tree = read(page.read_text(encoding="utf-8"))
    assert [e.attributes["data-part"] for e in tree.all("details") if e.attributes.get("class") == "part"] == [
        "forecast", "inputs", "remarks",
    ]  # fmt: skip
    content = tree.all("main")[0].text()
    assert report.results is not None
    for name in (*report.results.forecasts, *report.results.refused):
        assert name == "default" or name in content
    for remark in report.remarks:
        assert remark[1:] in content
    frame = pl.read_csv(tmp_path / "tables" / "forecasts.csv")
    assert frame.height == len(report.results.forecasts) - 1 + len(report.results.refused)
    assert (tmp_path / "figures" / "forecast.svg").is_file()
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# Forecast of ")
    assert "<script>x" not in page.read_text(encoding="utf-8").replace("\\u003c", "")
    again = write_forecast(tmp_path / "again", report).parent
    assert json.loads((again / "files.json").read_text()) == json.loads((tmp_path / "files.json").read_text())


def test_a_complete_run_has_no_table_of_forecasters(tmp_path: Path) -> None:
    page = write_forecast(tmp_path, forecast(log("done", 1)))
    assert "The run is complete" in read(page.read_text(encoding="utf-8")).text()
    assert not (tmp_path / "tables" / "curve.csv").exists()
