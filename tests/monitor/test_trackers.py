"""Trackers that a run uses already, with the real libraries, offline."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from monitored_events import NETWORK_NAMES, alert, forecasted, measured
from offline_wandb import wandb_records, wandb_rows

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Event, Logged
from toposcope.monitor.sinks import mlflow, tensorboard, trackio, wandb
from toposcope.monitor.sinks.sink import Sink

FORECAST_NAMES = {"toposcope/forecast/final_loss", "toposcope/forecast/low", "toposcope/forecast/high"}


def put(sink: Sink, *events: Event) -> None:
    """Pass events on as a monitor does: on another thread than that of the run."""

    def work() -> None:
        for event in events:
            sink.put(event)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what an event file holds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class TestTensorBoard:
    @pytest.fixture
    def writer(self, tmp_path: Path) -> Iterator[Any]:
        pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(tmp_path / "run")
        yield writer
        writer.close()

    def test_values_are_beside_those_of_the_run(self, writer: Any, tmp_path: Path) -> None:
        sink = tensorboard.SINK(tmp_path)
        assert sink is not None
        writer.add_scalar("loss", 3.0, 7)
        put(sink, measured(100), measured(200, 4.0), forecasted(200), alert(201), Logged(5, {"loss": 1.0}))
        sink.close()
        writer.add_scalar("loss", 2.0, 8)
        writer.close()
        found = scalars(tmp_path / "run")
        assert set(found) == {"loss", "toposcope/alerts", *NETWORK_NAMES, *FORECAST_NAMES}
        assert found["loss"] == [(7, 3.0), (8, 2.0)]
        assert found["toposcope/network/rips/total_persistence"] == [(100, 1.5), (200, 4.0)]
        assert found["toposcope/alerts"] == [(201, 1.0)]

    def test_a_closed_writer_is_left_alone(self, writer: Any, tmp_path: Path) -> None:
        sink = tensorboard.SINK(tmp_path)
        assert sink is not None
        writer.close()
        put(sink, measured(100))
        assert len(list((tmp_path / "run").iterdir())) == 1
        again = tensorboard.SINK(tmp_path)
        assert again is None or again._writer is not writer

    def test_a_writer_of_a_derived_class_is_found(self, writer: Any, tmp_path: Path) -> None:
        writer.close()

        class Derived(type(writer)):  # type: ignore[misc]
            pass

        derived = Derived(tmp_path / "derived")
        sink = tensorboard.SINK(tmp_path)
        derived.close()
        assert sink is not None
        assert sink._writer is derived

    def test_of_several_writers_the_outermost_is_taken(self, writer: Any, tmp_path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        inner = SummaryWriter(tmp_path / "run" / "validation")
        sink = tensorboard.SINK(tmp_path)
        inner.close()
        assert sink is not None
        assert sink._writer is writer


class TestWandb:
    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        library = pytest.importorskip("wandb", reason="wandb is not installed")
        for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(tmp_path))
        settings = library.Settings(console="off", silent=True)
        run = library.init(project="p", mode="offline", dir=str(tmp_path), settings=settings)
        yield run
        library.teardown()

    @staticmethod
    def finish(run: Any) -> None:
        """End the run, and wait until its file is written."""
        import wandb as library

        run.finish()
        library.teardown()

    def test_the_rows_of_the_run_stay_as_they_are(self, run: Any, tmp_path: Path) -> None:
        sink = wandb.SINK(tmp_path)
        assert sink is not None
        for step in range(5, 41, 5):
            if step == 10:
                put(sink, measured(10, 10.0), forecasted(10))
            if step == 20:
                put(sink, measured(18, 18.0), measured(19, 19.0), alert(20))
            run.log({"loss": 1 / step}, step=step)
        sink.close()
        self.finish(run)
        rows = wandb_rows(tmp_path)
        assert [row["_step"] for row in rows] == list(range(5, 41, 5))
        assert [row["loss"] for row in rows] == [1 / step for step in range(5, 41, 5)]
        ours = [{k: v for k, v in row.items() if k.startswith("toposcope")} for row in rows]
        filled = [(row["_step"], values) for row, values in zip(rows, ours, strict=True) if values]
        # W&B puts what is logged without a step into the row that is open
        (first, values), (_, second), (_, third) = filled
        assert first == 5
        assert set(values) == {"toposcope/step", *NETWORK_NAMES, *FORECAST_NAMES}
        assert values["toposcope/step"] == 10
        assert second["toposcope/step"] == 18
        assert second["toposcope/network/rips/total_persistence"] == 18.0
        # of 19 and 20 the last is seen
        assert third == {"toposcope/step": 20, "toposcope/alerts": 1}

    def test_it_has_its_own_axis_and_alerts(self, run: Any, tmp_path: Path) -> None:
        run.define_metric("*", step_metric="train/global_step", step_sync=True)
        sink = wandb.SINK(tmp_path)
        assert sink is not None
        put(sink, measured(10), alert(11))
        run.log({"loss": 1.0, "train/global_step": 12})
        self.finish(run)
        put(sink, measured(20))
        records = list(wandb_records(tmp_path))
        axes = {r.metric.glob_name or r.metric.name: r.metric.step_metric for r in records if r.HasField("metric")}
        assert axes["toposcope/*"] == "toposcope/step"
        (sent,) = [r.alert for r in records if r.HasField("alert")]
        assert (sent.title, sent.text) == ("toposcope: loss spike", "The loss rose to nan at step 11.")

    def test_without_a_run_there_is_no_sink(self, run: Any, tmp_path: Path) -> None:
        run.finish()
        assert wandb.SINK(tmp_path) is None


class TestMlflow:
    @pytest.mark.slow
    def test_metrics_have_the_steps_of_the_monitor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # a database needs further packages
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        library = pytest.importorskip("mlflow", reason="mlflow is not installed", exc_type=ImportError)
        library.set_tracking_uri((tmp_path / "mlruns").as_uri())
        assert mlflow.SINK(tmp_path) is None
        with library.start_run() as run:
            sink = mlflow.SINK(tmp_path)
            assert sink is not None
            library.log_metric("loss", 3.0, step=3)
            put(sink, measured(100), measured(200, 4.0), forecasted(200), alert(201))
            sink.close()
            assert library.active_run().info.run_id == run.info.run_id
        put(sink, measured(300, 5.0))
        client = library.tracking.MlflowClient()
        stored = client.get_run(run.info.run_id).data
        assert set(stored.metrics) == {"loss", "toposcope/alerts", *NETWORK_NAMES, *FORECAST_NAMES}
        history = client.get_metric_history(run.info.run_id, "toposcope/network/rips/total_persistence")
        assert [(m.step, m.value) for m in history] == [(100, 1.5), (200, 4.0), (300, 5.0)]
        assert stored.tags["toposcope.alert"] == "The loss rose to nan at step 201."


class TestTrackio:
    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        library = pytest.importorskip("trackio", reason="trackio is not installed", exc_type=ImportError)
        if not hasattr(library, "context_vars"):
            pytest.skip(f"trackio {library.__version__} is older than what is supported")
        monkeypatch.setattr(library.utils, "TRACKIO_DIR", tmp_path)
        monkeypatch.setattr(library.sqlite_storage, "TRACKIO_DIR", tmp_path)
        run = library.init(project="p", name="mine")
        yield run
        if library.context_vars.current_run.get() is not None:
            library.finish()

    def test_the_steps_of_the_run_go_on(self, run: Any, tmp_path: Path) -> None:
        import trackio as library

        sink = trackio.SINK(tmp_path)
        assert sink is not None
        for i in range(4):
            library.log({"loss": 1.0 / (i + 1)})
            if i == 1:
                put(sink, measured(100), forecasted(100), alert(101))
        library.finish()
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.get_logs("p", "mine")
        assert [row["step"] for row in rows if "loss" in row] == [0, 1, 2, 3]
        ours = [row for row in rows if "toposcope/step" in row]
        assert [(row["step"], row["toposcope/step"]) for row in ours] == [(1, 100), (1, 100), (1, 101)]
        assert ours[0].keys() >= NETWORK_NAMES
        assert ours[1].keys() >= FORECAST_NAMES


def test_a_trackio_that_numbers_rows_itself_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from contextvars import ContextVar
    from types import SimpleNamespace

    run = SimpleNamespace(log=lambda metrics: None)
    module = SimpleNamespace(current_run=ContextVar("current_run", default=run))
    monkeypatch.setitem(__import__("sys").modules, "trackio.context_vars", module)
    with pytest.raises(ToposcopeError, match=r"install trackio 0\.40 or newer"):
        trackio.SINK(tmp_path)
