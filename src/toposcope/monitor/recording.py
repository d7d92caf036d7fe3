"""Writes a monitored run into an ordinary study, which grows while the run trains."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.files import write_text
from toposcope.homology import Diagram
from toposcope.integrity import Finding
from toposcope.logs.columns import identify_columns
from toposcope.logs.table import sources
from toposcope.monitor.events import Alert, Event, Forecasted, Note
from toposcope.monitor.measuring import StepMeasurements
from toposcope.monitor.sinks.terminal import echo
from toposcope.probes import Probe
from toposcope.study.declaration import Declaration, DeclaredSeries, load_declaration
from toposcope.study.diagrams import diagram_bytes, diagram_file, is_readable, read_diagrams
from toposcope.study.runner import locked
from toposcope.study.store import Store, write_large_diagrams
from toposcope.study.tables import CheckpointRow, LayerRow, Unit

KIND = "live"
MAX_DIAGRAM_STEPS = 24
"""Diagrams are stored for this many measurements, then for every second of as many more, every fourth, and so on."""
MAX_NOTES = 100  # notes that a study keeps of a run, the last ones
TOLERANCE = 1e-4
"""Relative difference of a value that is measured again after a run has resumed, above which it disagrees."""


@dataclass
class RunInfo:
    """A run, and the study to record it in."""

    directory: Path  # directory of the study
    name: str  # requested name; a number is appended if the study has a finished run of that name
    n_parameters: int
    tokens_per_step: int = 0
    last_step: int | None = None  # planned last step


@dataclass(frozen=True)
class Earlier:
    """What was done of a run before it was interrupted: seconds of training and monitoring, updates measured, looks."""

    trained_seconds: float = 0.0
    cost_seconds: float = 0.0
    n_updates: int = 0
    looks: Mapping[str, Any] | None = None


class Recording:
    """Writes a run into a study; used from one thread."""

    def __init__(self, run: RunInfo, probes: Sequence[Probe], layers: Sequence[Layer], step: int) -> None:
        self._directory, self._layers, self._tokens_per_step = run.directory, layers, run.tokens_per_step
        self._lock: AbstractContextManager[None] = locked(run.directory)
        self._lock.__enter__()
        try:
            self._store = Store(run.directory / "study.db")
            self._n_changes = self._store.n_changes
            self.run, self.cut_at = self._begin(run, step)
            position = self._declare(run, probes)
            self._store.put_run(self.run, position, KIND, run.n_parameters or None, "")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        self._steps, self._has_disagreed = self._store.checkpoint_steps(self.run), False

    def _begin(self, run: RunInfo, step: int) -> tuple[str, int | None]:
        """Return the name of the run and, if it resumes one, the last stored step."""
        name, number, newest = run.name, 1, ""
        while (kind := self._store.kind(name)) is not None:
            newest = name if kind == KIND else newest
            number += 1
            name = f"{run.name}-{number}"
        # A killed run is still "running", and is resumed at any step. A run that ended is resumed at later steps only.
        if not newest or (step == 0 and self._store.status(newest) != "running"):
            return name, None
        last = self._store.last_step(newest)
        if last is not None:
            self._store.cut(newest, step or -1)  # of a run that begins again, nothing stays
        return newest, last

    def _declare(self, run: RunInfo, probes: Sequence[Probe]) -> int:
        """Add the run to the declaration of the study; return its position."""
        path = self._directory / "study.toml"
        series = DeclaredSeries(name=self.run, live=True, tokens_per_step=run.tokens_per_step)
        known = Declaration(name=study_name(self._directory), probes=[])
        if path.exists():
            known = load_declaration(path)
        declared = [*known.resolved_probes(), *(p for p in probes if p not in known.resolved_probes())]
        names = [s.resolved_name() for s in known.series]
        place = names.index(self.run) if self.run in names else len(names)
        declaration = msgspec.structs.replace(
            known,
            series=[*known.series[:place], series, *known.series[place + 1 :]],
            probes=[{"name": probe.name(), **json.loads(probe.options())} for probe in declared],
        )
        text = declaration.to_toml()
        if not path.exists() or path.read_text("utf-8") != text:
            write_text(path, text)
        return len(declaration.runs) + place

    def log(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Append logged values, by step, under the names that the loop uses."""
        named = {step: self._tokens(step) | stored_names(values) for step, values in rows.items()}
        self._store.append_log(self.run, named, time.time())

    def _tokens(self, step: int) -> dict[str, float]:
        return {"tokens": float(self._tokens_per_step * step)} if self._tokens_per_step else {}

    def logged(self) -> dict[int, dict[str, float]]:
        """Return the stored log, by step."""
        return self._store.log_rows(self.run)

    def measured(self, done: StepMeasurements) -> str:
        """Store the measurements of a step, and their diagrams if it is their turn; what is stored already stays."""
        step, is_new = done.step, done.step not in self._steps
        if done.is_extra and self.cut_at is not None:
            return ""
        known = {} if is_new else self._store.measured(self.run, [step])
        stored = {(unit.probe, unit.options) for unit in known}
        found = _diagrams(done) if not is_new or self._keeps_diagrams() else {}
        found = {probe: of for probe, of in found.items() if (probe.name(), probe.options()) not in stored}
        files = {probe: diagram_file(self.run, step, probe) for probe in found}
        contents = {files[probe]: diagram_bytes(layers) for probe, layers in found.items()}
        write_large_diagrams(self._directory, contents)
        with self._store.one_transaction():
            self._store.put_diagrams(contents)
            if is_new:
                self._store.put_checkpoints([(CheckpointRow(self.run, step, "", "", "", self._layer_rows(done)), None)])
            self._store.put_measurements(
                (unit, done.key(probe, layer), m, files.get(probe, "") if m.diagrams else "")
                for probe, rows in done.measurements.items()
                for layer, m in rows.items()
                if (unit := self._unit(step, probe, layer)) not in known
            )
            self._store.put_errors(
                {
                    self._unit(step, probe, layer): message
                    for probe, rows in done.failures.items()
                    for layer, message in rows.items()
                }
            )
        self._steps.add(step)
        if is_new or self._has_disagreed:
            return ""
        disagreement = self._disagreement(done)
        self._has_disagreed = bool(disagreement)
        return disagreement

    def _keeps_diagrams(self) -> bool:
        n = len(self._steps)
        return n % (1 << (n // MAX_DIAGRAM_STEPS)) == 0

    def _disagreement(self, done: StepMeasurements) -> str:
        """Return a sentence on the first value that differs from the stored one, the distances to others aside."""
        for probe, rows in done.measurements.items():
            if "diagrams" not in probe.REQUIRES:
                stored = self._store.statistics(self.run, done.step, probe.name(), probe.options())
                for layer, measurement in rows.items():
                    for name, new in measurement.statistics.items():
                        old = stored.get(layer, {}).get(name, new)
                        if not math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-12):
                            return (
                                f"{self.run}: step {done.step}, measured again, disagrees with what is stored, which "
                                f"is kept: {layer} {probe.name()} {name} was {old:.6g}, is {new:.6g}; did "
                                "training resume from another checkpoint?"
                            )
        return ""

    def last_diagrams(self) -> dict[tuple[str, str], dict[str, dict[str, Diagram]]]:
        """Return the stored diagrams of the last measurements, by name and options of the probe and by layer."""
        found: dict[tuple[str, str], dict[str, dict[str, Diagram]]] = {}
        for probe, files in self._store.last_diagrams(self.run).items():
            for file in sorted(set(filter(None, files.values()))):
                source = self._store.diagrams(file)
                if source is not None and is_readable(source):
                    of_layers = {n: of for n, of in read_diagrams(source).items() if files.get(n) == file}
                    found.setdefault(probe, {}).update(of_layers)
        return found

    def _layer_rows(self, done: StepMeasurements) -> tuple[LayerRow, ...]:
        seen = {layer for rows in done.measurements.values() for layer in rows}
        return tuple(
            LayerRow.of(layer, done.hashes.get(layer.name, "")) for layer in self._layers if layer.name in seen
        )

    def _unit(self, step: int, probe: Probe, layer: str) -> Unit:
        return Unit(self.run, step, layer, probe.name(), probe.options())

    def put(self, event: Event) -> None:
        """Store an alert, a forecast, or a note in place of those of later steps, which a resumed run makes again."""
        store, e = self._store, event
        if isinstance(e, Alert | Forecasted):
            put_event(store, self.run, e)
        elif isinstance(e, Note):
            key, line = f"changes {self.run}", f"step {e.step}: {e.message}"
            stored = (store.meta(key) or "").splitlines()
            earlier = [old for old in stored if int(old[5 : old.index(":")]) <= e.step and old != line]
            store.set_meta(key, "\n".join([*earlier[-MAX_NOTES:], line]))

    def findings(self, findings: Sequence[Finding], n_examined: int) -> None:
        """Store the doctor's findings on the saved checkpoints so far."""
        self._store.put_findings(self.run, findings)
        self._store.set_meta(f"examined {self.run}", str(n_examined))

    def status(self, facts: Mapping[str, Any]) -> None:
        """Store what the monitor measured, what it cost and what it skipped."""
        if not self._store.path.exists():  # SQLite goes on writing into a file that has no name any more
            raise ToposcopeError(f"{self._store.path}: deleted during training; the rest of this run is not recorded")
        if self._store.n_changes == self._n_changes:  # a finished script was started again
            return
        self._store.set_status(self.run, "running", None)
        self._store.set_meta(f"monitor {self.run}", json.dumps({**facts, "updated": round(time.time(), 1)}))

    def earlier(self) -> Earlier:
        """Return what is stored of the run before it was interrupted."""
        facts = json.loads(self._store.meta(f"monitor {self.run}") or "{}")
        n_updates = self._store.n_measured_updates(self.run)
        return Earlier(
            float(facts.get("trained_seconds", 0)), float(facts.get("cost_seconds", 0)), n_updates, facts.get("looks")
        )

    def close(self, status: str, last_step: int) -> None:
        """Store the final status of the run, and close the study."""
        try:
            self._store.set_status(self.run, status, last_step)
        finally:
            self.release()

    def release(self) -> None:
        """Close the study without a final status, so that the run counts as interrupted."""
        self._store.close()
        self._lock.__exit__(None, None, None)


def put_event(store: Store, run: str, event: Alert | Forecasted) -> None:
    """Store an alert or a forecast."""
    e = event
    if isinstance(e, Forecasted):
        store.put_forecast(run, e.step, e.last_step, e.loss, e.low, e.high, e.advice, e.target)
        return
    evidence = json.dumps({name: float(value) for name, value in e.evidence.items()})
    store.put_alert(run, e.kind, e.step, e.since, e.place, e.message, evidence)


def stored_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return logged values under the names of stored columns; further losses and accuracies keep their names."""
    return {column: values[name] for column, name in _columns(tuple(values)).items()}


@lru_cache(maxsize=256)
def _columns(names: tuple[str, ...]) -> dict[str, str]:
    return sources(identify_columns(names))


def study_name(directory: Path) -> str:
    """Return the name of a directory with the characters that a study's name cannot have replaced."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in directory.resolve().name)
    return name.lstrip("._-")[:100] or "training"


def _diagrams(done: StepMeasurements) -> dict[Probe, dict[str, dict[str, Diagram]]]:
    """Return the diagrams of a step by probe and layer; of probes that made any."""
    found = {p: {n: dict(m.diagrams) for n, m in rows.items() if m.diagrams} for p, rows in done.measurements.items()}
    return {probe: layers for probe, layers in found.items() if layers}


WRITE_SECONDS = 0.5  # least time between writes; the session waits longer if writing is slow
RETRY_SECONDS = 10.0  # time until a failed write is tried again
MAX_WAITING = 1_000  # queued writes while the study cannot be written; beyond that, the oldest are dropped

Write = Callable[[Recording], None]


class WriteQueue:
    """Makes writes in order, each once; while the study cannot be written, they wait in bounded memory."""

    def __init__(self, open_recording: Callable[[], Recording]) -> None:
        self._open = open_recording
        self.recording: Recording | None = None
        self._waiting: deque[tuple[Write, StepMeasurements | None]] = deque()
        self._is_reported = False

    def add(self, write: Write, done: StepMeasurements | None = None) -> None:
        """Queue a write; if the queue grows long, the diagrams of what it writes are dropped."""
        self._waiting.append((write, done))

    def write(self, facts: Callable[[], dict[str, Any]], *, is_last: bool = False) -> float:
        """Write what is queued, and then, or at last, the monitor's status; return the seconds until the next write."""
        if not self._waiting and self.recording is not None and not is_last:
            return WRITE_SECONDS
        try:
            if self.recording is None:
                self.recording = self._open()
            while self._waiting:
                self._waiting[0][0](self.recording)
                self._waiting.popleft()
            self.recording.status(facts())
        except ToposcopeError as error:
            if not self._is_reported:
                echo(f"{error}; training continues, and the write is tried again every {RETRY_SECONDS:.0f} s")
            self._is_reported = True
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
            measured = [done for _, done in self._waiting if done is not None]
            for done in measured[:-MAX_DIAGRAM_STEPS]:
                done.forget_diagrams()
            return RETRY_SECONDS
        return WRITE_SECONDS

    def close(self, status: str, step: int) -> None:
        """Close the study; store the final status only if nothing is left in the queue."""
        if self.recording is not None and self._waiting:
            self.recording.release()
        elif self.recording is not None:
            self.recording.close(status, step)
