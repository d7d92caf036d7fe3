"""What a monitor stores: an ordinary study directory, which grows while a run trains."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from toposcope.checkpoints import Layer
from toposcope.files import write_all_bytes, write_text
from toposcope.integrity import Finding
from toposcope.monitor.events import Alert, Forecasted
from toposcope.monitor.measuring import StepMeasurements
from toposcope.monitor.watching import stored_names
from toposcope.probes import Probe
from toposcope.study.declaration import Declaration, DeclaredSeries, load_declaration
from toposcope.study.diagrams import diagram_bytes, diagram_file
from toposcope.study.runner import locked
from toposcope.study.store import CheckpointRow, LayerRow, Store, Unit

KIND = "live"
MAX_DIAGRAM_STEPS = 24
"""Diagrams are kept of the first so many measurements, then of every second for as many again, of every fourth, ..."""


@dataclass
class Place:
    """Where a run is recorded.

    Attributes
    ----------
    directory : Path
        The study's.
    run : str
        Wanted name; a run that begins anew beside an older one of that name has a number behind it.
    n_parameters, tokens_per_step : int
    last_step : int, optional
        Planned.
    """

    directory: Path
    run: str
    n_parameters: int
    tokens_per_step: int = 0
    last_step: int | None = None


class Recording:
    """Writes a run into a study. All of it is called on one thread.

    Parameters
    ----------
    place : Place
    probes : sequence of Probe
        Those declared in the study, with their options.
    layers : sequence of Layer
        All analysed layers.
    step : int
        From which training goes on; what is stored of later steps is deleted, since it will be trained again.

    Attributes
    ----------
    run : str
        The name under which it is stored.
    cut_at : int or None
        The last stored step before the run was resumed at an earlier one, or at that one.

    Raises
    ------
    ToposcopeError
        If the directory cannot be written, another process writes to it, or it holds something else.
    """

    def __init__(self, place: Place, probes: Sequence[Probe], layers: Sequence[Layer], step: int) -> None:
        self._directory, self._layers = place.directory, layers
        self._lock: AbstractContextManager[None] = locked(place.directory)
        self._lock.__enter__()
        try:
            self._store = Store(place.directory / "study.db")
            self.run, self.cut_at = self._begin(place, step)
            position = self._declare(place, probes)
            self._store.put_run(self.run, position, KIND, place.n_parameters or None, "")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        self._n_measured = 0

    def _begin(self, place: Place, step: int) -> tuple[str, int | None]:
        """Return the name of the run, and its last stored step if it goes on."""
        last = self._store.last_step(place.run)
        if last is None:
            return place.run, None
        # One that was killed is trained again from there; one that ended is another run.
        if step == 0 and self._store.status(place.run) != "running":
            number = 2
            while self._store.last_step(f"{place.run}-{number}") is not None:
                number += 1
            return f"{place.run}-{number}", None
        self._store.cut(place.run, step)
        return place.run, last

    def _declare(self, place: Place, probes: Sequence[Probe]) -> int:
        """Write the declaration, with what it holds already; return the position of the run."""
        path = self._directory / "study.toml"
        wanted = [{"name": probe.name(), **json.loads(probe.options())} for probe in probes]
        series = DeclaredSeries(name=self.run, live=True, tokens_per_step=place.tokens_per_step)
        if path.exists():
            known = load_declaration(path)
            declared = [*known.resolved_probes(), *(p for p in probes if p not in known.resolved_probes())]
            others = [s for s in known.series if s.resolved_name() != self.run]
            declaration = msgspec.structs.replace(
                known,
                series=[*others, series],
                probes=[{"name": probe.name(), **json.loads(probe.options())} for probe in declared],
            )
        else:
            declaration = Declaration(name=study_name(self._directory), series=[series], probes=wanted)
        write_text(path, declaration.to_toml())
        return len(declaration.runs) + len(declaration.series) - 1

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Append what the loop logged, by step, under the names it uses."""
        self._store.append_log(self.run, {step: stored_names(values) for step, values in rows.items()})

    def logged(self) -> dict[int, dict[str, float]]:
        """Return what is stored of the log, by step."""
        return self._store.log_rows(self.run)

    def measured(self, done: StepMeasurements) -> None:
        """Store the measurements of a step, and their diagrams where these are kept."""
        step, keep = done.step, self._keeps_diagrams()
        files = self._write_diagrams(done) if keep else {}
        with self._store.together():
            self._store.put_checkpoint(CheckpointRow(self.run, step, "", "", "", self._layer_rows(done)))
            self._store.put_measurements(
                (self._unit(step, probe, layer), done.key(probe, layer), m, files.get(probe, "") if m.diagrams else "")
                for probe, rows in done.measurements.items()
                for layer, m in rows.items()
            )
            self._store.put_errors(
                {
                    self._unit(step, probe, layer): message
                    for probe, rows in done.failures.items()
                    for layer, message in rows.items()
                }
            )

    def _keeps_diagrams(self) -> bool:
        self._n_measured += 1
        every = 1 << (max(0, self._n_measured - 1) // MAX_DIAGRAM_STEPS)
        return (self._n_measured - 1) % every == 0

    def _write_diagrams(self, done: StepMeasurements) -> dict[Probe, str]:
        contents, files = {}, {}
        for probe, rows in done.measurements.items():
            diagrams = {layer: m.diagrams for layer, m in rows.items() if m.diagrams}
            if diagrams:
                files[probe] = diagram_file(self.run, done.step, probe)
                path = self._directory / files[probe]
                contents[path] = diagram_bytes(path, diagrams, [])
        write_all_bytes(contents)
        return files

    def _layer_rows(self, done: StepMeasurements) -> tuple[LayerRow, ...]:
        seen = {layer for rows in done.measurements.values() for layer in rows}
        return tuple(
            LayerRow(
                layer.name,
                layer.role,
                layer.shape[0],
                layer.shape[1],
                layer.dtype,
                done.hashes.get(layer.name, ""),
            )
            for layer in self._layers
            if layer.name in seen
        )

    def _unit(self, step: int, probe: Probe, layer: str) -> Unit:
        return Unit(self.run, step, layer, probe.name(), probe.options())

    def alert(self, alert: Alert) -> None:
        """Store an alert."""
        evidence = json.dumps({name: float(value) for name, value in alert.evidence.items()})
        self._store.put_alert(self.run, alert.kind, alert.step, alert.since, alert.place, alert.message, evidence)

    def forecast(self, forecast: Forecasted) -> None:
        """Store a forecast."""
        f = forecast
        self._store.put_forecast(self.run, f.step, f.last_step, f.loss, f.low, f.high, f.advice)

    def findings(self, findings: Sequence[Finding], n_examined: int) -> None:
        """Store what the doctor found in the saved checkpoints so far."""
        self._store.put_findings(self.run, findings)
        self._store.set_meta(f"examined {self.run}", str(n_examined))

    def status(self, facts: Mapping[str, Any]) -> None:
        """Store what the monitor did, took and left out."""
        self._store.set_meta(f"monitor {self.run}", json.dumps({**facts, "updated": round(time.time(), 1)}))

    def close(self, status: str, last_step: int) -> None:
        """Store how the run ended, and close the study."""
        try:
            self._store.set_status(self.run, status, last_step)
        finally:
            self._store.close()
            self._lock.__exit__(None, None, None)


def study_name(directory: Path) -> str:
    """Return the name of the study in a directory: that of the directory, as far as it can be one."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in directory.resolve().name)
    return name.lstrip("._-")[:100] or "training"
