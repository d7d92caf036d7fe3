"""MLflow: reports to the run that is active on the training thread."""

import sys
import time
from pathlib import Path
from typing import Any

from toposcope.monitor.events import Alert, Event
from toposcope.monitor.sinks.values import ALERTS, tracked_values

MAX_METRICS = 1000
"""MLflow's limit of metrics per request."""
MAX_TAG = 500


class MlflowSink:
    """Logs metrics at the steps of the monitor; the last alert is the tag ``toposcope.alert``.

    Parameters
    ----------
    client : mlflow.MlflowClient
        A client writes to a run by its identifier from any thread; the active run is known on one thread only.
    metric : type
        `mlflow.entities.Metric`.
    run_id : str
    """

    def __init__(self, client: Any, metric: Any, run_id: str) -> None:
        self._client, self._metric, self._run_id = client, metric, run_id
        self._n_alerts = 0

    def put(self, event: Event) -> None:
        """Report one event."""
        values = tracked_values(event)
        if isinstance(event, Alert):
            self._n_alerts += 1
            values = {ALERTS: self._n_alerts}
            self._client.set_tag(self._run_id, "toposcope.alert", event.message[:MAX_TAG])
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, event.step) for name, value in values.items()]
        for begin in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[begin : begin + MAX_METRICS])

    def close(self) -> None:
        """Leave the run active; whoever started it ends it."""


def SINK(directory: Path) -> MlflowSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the active run, if there is one."""
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or run is None:
        return None
    return MlflowSink(mlflow.tracking.MlflowClient(), mlflow.entities.Metric, run.info.run_id)
