"""What a monitor stored of a run is read with its log."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from live_studies import LiveStudy, live_study

from toposcope.analysis.health.monitored import monitored_checks
from toposcope.logs import read_logs
from toposcope.logs.watched import LayerLooks, Watched, read_watched
from toposcope.probes import Measurement
from toposcope.probes.training import TrainingProbe
from toposcope.study.tables import Unit


def measure(study: LiveStudy, step: int, gradients: dict[str, float]) -> None:
    probe = TrainingProbe()
    study.measure(step)
    study.store.put_measurements(
        (Unit(study.run, step, layer, probe.name(), probe.options()), f"{step}", Measurement(layer, "mlp", row), "")
        for layer, gradient in gradients.items()
        for row in [{"gradient_norm": gradient, "nonfinite": 0.0}]
    )


def watched(study: LiveStudy) -> Watched:
    (run,) = read_logs(study.directory).logs
    assert run.watched is not None
    return run.watched


def test_a_monitored_run_is_read_with_its_alerts_forecasts_and_status(tmp_path: Path) -> None:
    study = live_study(tmp_path / "run", steps=200, last_step=400)
    study.alert(150, "later")
    study.forecast(160, target="validation loss")
    found = watched(study)
    assert [(a["step"], a["check"]) for a in found.alerts] == [(150, "loss spike"), (100, "loss spike")]
    assert [(f["step"], f["target"]) for f in found.forecasts] == [
        *((100, "training loss"), (160, "validation loss"), (200, "training loss"))
    ]
    assert (found.status, found.layers, found.updated) == ("running", LayerLooks(), None)
    assert read_logs(study.directory).logs[0].last_step == 400
    study.store.close()


@pytest.mark.parametrize(
    ("losses", "mark", "text"),
    [
        ([2.4, 2.4, 2.4], "good", "The forecast is steady: 2 of 2 earlier intervals contain it"),
        ([2.4, 2.9, 2.4], "open", "The forecast moved: 1 of 2 earlier intervals contain it"),
        ([2.9, 2.4], "open", "The forecast moved: 0 of 1 earlier intervals contain it"),
    ],
)
def test_a_forecast_is_steady_where_nearly_all_earlier_ones_said_so(
    losses: list[float], mark: str, text: str, tmp_path: Path
) -> None:
    study = LiveStudy(tmp_path / "run", last_step=2000)
    study.log(range(1, 400))
    for step, loss in zip((100, 200, 300), losses, strict=False):
        study.forecast(step, loss)
    (run,) = read_logs(study.directory).logs
    study.store.close()
    (found,) = (check for check in monitored_checks(run) if "forecast" in check.text)
    assert (found.mark, found.text) == (mark, text)


def test_only_a_run_that_a_monitor_watched_is_read(tmp_path: Path) -> None:
    study = live_study(tmp_path / "run", steps=100)
    study.store.close()
    with closing(sqlite3.connect(study.directory / "study.db")) as store:
        store.execute("UPDATE runs SET kind = 'series'")
        assert read_watched(store, study.run) is None
        assert read_watched(store, "another") is None


def test_looks_at_layers_are_those_of_measured_steps_and_the_newer_ones_between(tmp_path: Path) -> None:
    study = LiveStudy(tmp_path / "run")
    study.log(range(1, 400))
    study.measure(0)
    for step in range(100, 400, 100):
        measure(study, step, {"a": 1.0, "b": 0.0 if step == 300 else 1.0, "network": 1.0})
    assert watched(study).layers == LayerLooks(n_layers=2, idle=("b",), n_looks=3, first=100, last=300)
    looks = {"n_layers": 4, "n_updated": 4, "idle": [], "n_looks": 20, "first": 3, "last": 390}
    study.store.set_meta(f"monitor {study.run}", json.dumps({"looks": looks, "last_step": 500, "step_seconds": 0.1}))
    found = watched(study)
    assert found.layers == LayerLooks(n_layers=4, n_updated=4, n_looks=20, first=3, last=390)
    assert (found.step_seconds, read_logs(study.directory).logs[0].last_step) == (0.1, 500)
    study.store.close()
