"""MLflow: reports to the run that is active on the training thread."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.monitor.events import Alert
from toposcope.monitor.sinks.sink import Tracker

MAX_METRICS = 1000  # MLflow's limit of metrics per request
MAX_TAG = 500


class MlflowSink(Tracker):
    """Logs metrics at the steps of the monitor; the last alert is the tag ``toposcope.alert``.

    A client writes to a run by its identifier from any thread; the active run is known on one thread only.
    """

    def __init__(self, client: Any, metric: Any, run_id: str) -> None:
        self._client, self._metric, self._run_id = client, metric, run_id

    def alert(self, alert: Alert) -> None:
        """Set the tag."""
        self._client.set_tag(self._run_id, "toposcope.alert", alert.message[:MAX_TAG])

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics, in batches."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        for begin in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[begin : begin + MAX_METRICS])


def SINK(directory: Path) -> MlflowSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the active run, if there is one."""
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or run is None:
        return None
    return MlflowSink(mlflow.tracking.MlflowClient(), mlflow.entities.Metric, run.info.run_id)
