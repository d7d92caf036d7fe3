"""Alerts and forecasts of a live run in the report, the frames, the export and the forecast; and their absence."""

from pathlib import Path

import polars as pl
import pytest
from commands import called
from live_studies import LiveStudy, live_study

from toposcope.report.sections.monitor import SECTION, final_losses
from toposcope.report.writing import study_page
from toposcope.study import Study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> LiveStudy:
    written = live_study(tmp_path_factory.mktemp("runs") / "mine", steps=1000, every=100, last_step=1000)
    written.forecast(900, 9.0)
    return written


def test_a_study_hands_out_what_the_monitor_said(study: LiveStudy) -> None:
    opened = Study.load(study.directory)
    (alert,) = opened.alerts().to_dicts()
    assert (alert["run"], alert["check"], alert["step"], alert["since"]) == ("mine", "loss spike", 500, 499)
    assert opened.forecasts().get_column("step").to_list() == [500, 900, 1000]


def test_the_report_of_a_run_that_still_trains_has_the_section(study: LiveStudy) -> None:
    page = study_page(Study.load(study.directory))
    assert {"alerts", "forecasts"} <= page.tables().keys()
    assert SECTION.finding(page.data) == "1 alert in mine; 3 forecasts"
    assert SECTION.summary(page.data)[0].startswith("While mine trained, the monitor raised an alert at step 500:")
    (chart,) = [chart for anchor, chart in page.charts() if anchor == "monitor"]
    assert chart.name == "forecasts-made"


def test_forecasts_are_held_against_how_the_run_ended(study: LiveStudy) -> None:
    material = study_page(Study.load(study.directory)).data
    late = material.log.filter(pl.col("step") > 980).get_column("loss").mean()
    assert final_losses(material) == {"mine": pytest.approx(late)}
    blocks = "".join(str(block) for block in SECTION.blocks(material, []))
    assert "within the interval of 1 of 3 forecasts" in blocks


def test_a_study_that_nobody_watched_has_no_such_section(tmp_path: Path) -> None:
    written = LiveStudy(tmp_path / "mine")
    written.log(range(1, 200))
    for step in range(0, 200, 20):
        written.measure(step)
    page = study_page(Study.load(written.directory))
    assert not {"alerts", "forecasts"} & page.tables().keys()
    assert not list(SECTION.blocks(page.data, []))
    assert SECTION.finding(page.data) == ""


def test_commands_take_a_study_without_checkpoint_files(study: LiveStudy, tmp_path: Path) -> None:
    done = called("export", study.directory, "--format", "csv", "--out", tmp_path)
    assert done.code == 0
    assert len(pl.read_csv(tmp_path / "alerts.csv")) == 1
    assert len(pl.read_csv(tmp_path / "forecasts.csv")) == 3
    done = called("forecast", study.directory)
    assert done.code == 0, done.err
    assert "1,000" in done.out
    done = called("doctor", study.directory)
    assert done.code != 0
    assert "no checkpoint was examined while it trained; name the folder with checkpoints" in done.err
