"""The first live screen of a study on disk: its charts, and that it notices a run that falls silent."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from live_studies import live_study

from toposcope.report.live.assets import Assets
from toposcope.report.live.feed import View
from toposcope.report.live.making import assets_without_vega
from toposcope.report.live.server import LivePage


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets(**assets_without_vega(), vega="")


def screen(directory: Path, assets: Assets) -> dict[str, Any]:
    page = LivePage(directory, assets, None)
    page.refresh(around=True)
    message, _ = page.message(View(), {})
    return message


def test_the_four_charts_need_no_choice(tmp_path: Path, assets: Assets) -> None:
    study = live_study(tmp_path / "mine", steps=400, every=50)
    study.store.append_log("mine", {step: {"validation_loss": study.loss(step)} for step in range(20, 401, 20)})
    message = screen(study.directory, assets)
    rows = {line.key: len(line.steps) for line in message["lines"] if not line.layer}
    assert rows == {"log loss": 400, "log validation_loss": 20, "log learning_rate": 400, "log grad_norm": 400}
    (end,) = message["forecasts"]
    assert (message["main"], end["step"]) == ("training", 2000)
    assert (end["value"], end["low"], end["high"]) == pytest.approx((2.4, 2.06, 2.74))
    assert "Healthy." in message["html"]["now"]
    assert "Is it healthy?" in message["html"]["runs"]
    names = [each["name"] for each in message["features"]]
    assert names[:2] == ["Neural persistence, mean", "H0 total"]
    assert {each["group"] for each in message["features"]} >= {"main", "log"}
    assert message["layers"]["mine"]["labels"] == [f"layers.{i}.mlp" for i in range(4)]


def test_a_run_that_falls_silent_wakes_the_page(
    tmp_path: Path, assets: Assets, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = live_study(tmp_path / "mine", steps=400, every=100)
    facts = {"step_seconds": 0.1, "updated": time.time(), "last_step": 2000}
    study.store.set_meta("monitor mine", json.dumps(facts))
    page = LivePage(study.directory, assets, None)
    before = page.refresh(around=True)
    assert "Healthy." in page.message(View(), {})[0]["html"]["now"]
    assert page.refresh(around=True) == before
    later = time.time() + 130
    monkeypatch.setattr(time, "time", lambda: later)
    assert page.refresh(around=True) == before + 1
    assert "Silent." in page.message(View(), {})[0]["html"]["now"]
    assert page.refresh(around=True) == before + 1
