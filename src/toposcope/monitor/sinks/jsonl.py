"""Writes every event to a file as a line of JSON."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Alert, Event, Forecasted, Logged, Measured, Note

TAIL = 1 << 16


class JsonlSink:
    """Appends a line for each event; ``event`` is one of log, measurement, note, alert, forecast."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise ToposcopeError(f"{path}: cannot be written ({error.strerror}); name another file") from error
        try:
            self._remove_incomplete_line(path)
        except BaseException:
            self._file.close()
            raise

    def _remove_incomplete_line(self, path: Path) -> None:
        """Remove an incomplete last line of a file of JSON lines."""
        size = self._file.seek(0, os.SEEK_END)
        if not size:
            return
        self._file.seek(0)
        if self._file.read(1) != b"{":
            raise _not_json_lines(path)
        self._file.seek(max(0, size - TAIL))
        tail = self._file.read()
        if not tail.endswith(b"\n"):
            end = tail.rfind(b"\n") + 1
            if not end and size > TAIL:
                raise _not_json_lines(path)
            self._file.truncate(size - len(tail) + end)

    def put(self, event: Event) -> None:
        """Append a line."""
        self._file.write(json.dumps(_content(event), allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _not_json_lines(path: Path) -> ToposcopeError:
    return ToposcopeError(f"{path}: exists and is not a file of JSON lines; name another file")


def _content(event: Event) -> dict[str, Any]:
    """Return an event as JSON; numbers that are not finite become the strings nan, inf and -inf."""
    match event:
        case Logged(step, values):
            return {**_numbers(values), "event": "log", "step": step}
        case Measured(step, rows, skipped):
            measured = [
                {"layer": layer, "probe": probe, **_numbers(statistics)} for (layer, probe), statistics in rows.items()
            ]
            return {"event": "measurement", "step": step, "rows": measured, "skipped": list(skipped)}
        case Note():
            return {"event": "note", **vars(event)}
        case Alert():
            return {"event": "alert", **vars(event), "evidence": _numbers(event.evidence)}
        case Forecasted():
            numbers = _numbers({"loss": event.loss, "low": event.low, "high": event.high})
            return {"event": "forecast", **vars(event), **numbers}


def _numbers(values: Mapping[str, float]) -> dict[str, float | str]:
    return {name: float(v) if math.isfinite(v) else str(float(v)) for name, v in values.items()}
