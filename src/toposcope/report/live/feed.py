"""Collects what a page is sent: new rows of its charts, and the status of the runs."""

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.report.live import cool_down
from toposcope.report.live.assets import Assets
from toposcope.report.live.status import Status
from toposcope.report.live.stores import New, StoreSource, layer_names, runs
from toposcope.report.naming import LOG, MEASURED, feature_words, layer_labels

if TYPE_CHECKING:
    from toposcope.forecasting.sweeps.reading import InSweep
    from toposcope.report.live.logs import FoundRuns, LogScan, ReadLog

LOSS = f"{LOG} loss"
LAST = ("training nonfinite", "training nonfinite_gradients")
KINDS = ("topology", "spectrum", "norm", "loss", "control")
MAX_STUDIES = 1 << 12  # studies of a folder on one page; the page says how many more there are
MIN_SWEEP = 8  # runs of which a page says which could stop
MAX_DRAWN = 128  # of them, those in the charts; the answer and the table are of all

Position = dict[str, list[int]]
"""What a page has received, by study; JSON, so that the page can send it back to a restarted server."""


@dataclass(frozen=True)
class View:
    """What a page shows of the layers, and of which study."""

    study: str = ""  # name of one study of a folder; all of them if empty
    run: str = ""  # selection of the layer map and of the line of one layer
    quantity: str = ""  # of both


@dataclass
class Part:
    """What a message has of one study."""

    statuses: list[Status]
    new: New
    features: dict[str, dict[str, str]] = field(default_factory=dict)
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)


class Feed:
    """The studies of a folder, or one study; and the logs there that nobody monitors, as studies."""

    def __init__(self, directory: Path, assets: Assets, reader: "LogScan | None" = None) -> None:
        self.directory = directory
        self._assets, self._reader = assets, reader
        self._found: FoundRuns | None = None
        self._lock = threading.Lock()
        self._n_changes: dict[str, int] = {}
        self._parts: dict[str, tuple[tuple[int, ...], Part]] = {}  # what the last message had of each, without rows
        self.stores: dict[str, StoreSource] = {}
        self.logs: Mapping[str, ReadLog] = {}
        self.left_out = 0
        self._judged_at, self._stoppable = {"": -1}, list[str]()
        self.discover()

    @property
    def studies(self) -> list[str]:
        """The names of the studies and logs."""
        return [*self.stores, *self.logs]

    @property
    def is_single(self) -> bool:
        """Whether there is one study, and its place is the directory, or it is the log there."""
        return len(self.studies) == 1 and (
            bool(self.logs) or next(iter(self.stores.values())).directory == self.directory
        )

    def discover(self) -> bool:
        """Find new studies and drop deleted ones; return whether the set changed."""
        if (self.directory / "study.db").is_file():
            found = [self.directory]
        else:
            try:
                found = sorted(path.parent for path in self.directory.glob("*/study.db"))
            except OSError:
                found = []
        before, self._found = self._found, self._reader.ask() if self._reader is not None else None
        stores = {path.resolve().name: path for path in found}
        logs = {f"{name} (log)" if name in stores else name: log for name, log in self._logs().items()}
        self.left_out = max(0, len(stores) + len(logs) - MAX_STUDIES)
        stores = dict(list(stores.items())[:MAX_STUDIES])
        logs = dict(list(logs.items())[: MAX_STUDIES - len(stores)])
        with self._lock:
            known = {name: store.directory for name, store in self.stores.items()}
            if (stores, logs) == (known, self.logs):
                return self._found != before
            for name in [name for name, path in known.items() if stores.get(name) != path]:
                self.stores.pop(name).close()
            self.stores = {
                name: self.stores.get(name) or StoreSource(path, self._assets, name) for name, path in stores.items()
            }
            self.logs = logs
            self._parts.clear()
            return True

    def _logs(self) -> "Mapping[str, ReadLog]":
        return self._found.logs if self._found is not None else {}

    def has_changed(self) -> bool:
        """Return whether anything was written since the last call."""
        changed = [store.has_changed() for store in list(self.stores.values())]  # no short-circuit
        counts = {name: log.n_changes for name, log in self.logs.items()} | {"": cool_down.stamp(self.directory)}
        is_new, self._n_changes = counts != self._n_changes, counts
        return any(changed) or is_new

    def message(self, view: View, known: Position) -> tuple[dict[str, Any], Position]:
        """Return the message for a page with a view and a position, and the page's new position."""
        parts: dict[str, Part] = {}
        faults = {fault: fault for fault in (self._found.faults if self._found is not None else ())}
        with self._lock:
            chosen = [name for name in self.studies if view.study in ("", name)]
            if len(chosen) > MAX_DRAWN:
                faults["drawn"] = (
                    f"The charts show {MAX_DRAWN} of {len(chosen):,} runs, evenly by name; the table has all, and "
                    "links to the page of each"
                )
            drawn = (
                {chosen[i * len(chosen) // MAX_DRAWN] for i in range(MAX_DRAWN)} if len(chosen) > MAX_DRAWN else chosen
            )
            for name in chosen:
                try:
                    is_drawn = name in drawn
                    parts[name] = self._part(name, view, known.get(name, []), len(chosen), is_drawn=is_drawn)
                except sqlite3.Error as error:
                    faults[name] = f"{self.stores[name].path}: cannot be read at the moment ({error})"
        statuses = [status for part in parts.values() for status in part.statuses]
        features = {key: of for part in parts.values() for key, of in part.features.items()}
        return {
            "runs": [status.name for status in statuses],
            "studies": {status.name: name for name, part in parts.items() for status in part.statuses},
            "features": self._ordered(features),
            "layers": {run: of for part in parts.values() for run, of in part.layers.items()},
            "lines": [line for part in parts.values() for line in part.new.lines],
            "anew": [status.name for part in parts.values() if part.new.is_anew for status in part.statuses],
            "more": any(part.new.has_more for part in parts.values()),
            "statuses": statuses,
            "faults": faults,
            "not_shown": "" if view.study or self._found is None else self._found.not_shown,
        }, {name: part.new.position for name, part in parts.items()}

    def statuses(self) -> tuple[list[Status], dict[str, str]]:
        """Return the status of every run, and why studies cannot be read, by name."""
        statuses, faults = list[Status](), dict[str, str]()
        for name, store in self.stores.items():
            try:
                with store.reading() as c:
                    rows = runs(c)
                    statuses += store.statuses(c, rows, self._shown(name, [row.run for row in rows]))
            except sqlite3.Error as error:
                faults[name] = f"{store.path}: cannot be read at the moment ({error})"
        for name, log in self.logs.items():
            statuses += log.statuses(self._shown(name, list(log.runs)))
        return statuses, faults

    def in_sweep(self, last_step: int | None = None) -> "list[InSweep]":
        """Return every run as it was logged, and whether it goes on; of a given length where its log states none."""
        from toposcope.forecasting.sweeps.reading import InSweep  # with NumPy and Polars, after the server has started

        found = list[InSweep]()
        for name, source in self._sources():
            runs = source.in_sweep(last_step)
            shown = self._shown(name, [run.name for run, _ in runs])
            found += [InSweep(shown[run.name], run, goes_on) for run, goes_on in runs]
        return found

    def _sources(self) -> "list[tuple[str, StoreSource | ReadLog]]":
        return [*self.stores.items(), *self.logs.items()]

    def stoppable(self) -> list[str]:
        """Return which runs could stop if they are a sweep, at low risk; none of few runs, which may be anything."""
        from toposcope.forecasting.sweeps.reading import sweep_runs
        from toposcope.forecasting.sweeps.rule import RULES
        from toposcope.forecasting.sweeps.sweep import judge_all

        changes = {name: source.n_changes for name, source in self._sources()}
        if changes != self._judged_at:
            runs = sweep_runs(self.in_sweep())
            judged = judge_all(runs, RULES["low"]) if len(runs) >= MIN_SWEEP else []
            # of one that diverged, of which no loss is compared, the page says so already
            stopping = [each.name for each in judged if each.stop and each.loss is not None]
            self._judged_at, self._stoppable = changes, stopping
        return self._stoppable

    def _part(self, name: str, view: View, known: Sequence[int], n_studies: int, *, is_drawn: bool) -> Part:
        """Return what a page does not have of a study; nothing is read if nothing was written since the last one."""
        source = self.stores.get(name) or self.logs[name]
        version = source.n_changes, n_studies, is_drawn, cool_down.stamp(self.directory)
        before, part = self._parts.get(name, ((), None))
        if part is not None and before == version and part.new.position == known and not part.new.has_more:
            return part
        if isinstance(source, StoreSource):
            part = self._of_store(source, view, known, n_studies)
        else:
            part = self._of_log(name, known)
        if not is_drawn:
            part.new = New([], [])
        self._parts[name] = version, replace(part, new=replace(part.new, lines=[], is_anew=False))
        return part

    def _of_log(self, name: str, known: Sequence[int]) -> Part:
        log = self.logs[name]
        names = self._shown(name, list(log.runs))
        columns = [column for run in log.runs.values() for column in run.columns()]
        statuses = log.statuses(names)
        if self.is_single and len(statuses) == 1:
            measured = cool_down.measured_words(self.directory, statuses[0].step)
            statuses = [replace(statuses[0], cool_down=measured)]
        return Part(statuses, log.new(known, names), self._logged(columns))

    def _of_store(self, store: StoreSource, view: View, known: Sequence[int], n_studies: int) -> Part:
        with store.reading() as c:
            rows = runs(c)
            names = self._shown(store.name, [row.run for row in rows])
            found = store.catalogue(c)
            run = next((run for run, shown in names.items() if shown == view.run), "")
            new = store.new(c, known, run, view.quantity)
            new.lines = [line._replace(run=names[line.run]) for line in new.lines if line.run in names]
            statuses = store.statuses(c, rows, names)
            if len(rows) == n_studies == 1:
                statuses = [store.with_cool_down(c, rows[0].run, statuses[0])]
            kinds = {(probe, name): kind for probe, name, kind in c.execute("SELECT * FROM kinds")}
            features: dict[str, dict[str, str]] = {}
            layers: dict[str, dict[str, Any]] = {}
            for run, shown in names.items():
                for key, of in found.whole.get(run, {}).items():
                    kind = kinds.get((of.probe, of.statistic), "control")
                    features.setdefault(key, {"key": key, "name": self._name(key), "kind": kind})
                features |= self._logged(found.columns.get(run, ()))
                keys = sorted(found.layers.get(run, {}), key=self._order)
                if keys and (of_run := layer_names(c, run)):
                    titles = [self._name(key) for key in keys]
                    layers[shown] = {"names": of_run, "labels": layer_labels(of_run), "keys": keys, "titles": titles}
        return Part(statuses, new, features, layers)

    def close(self) -> None:
        """Close the files."""
        for store in self.stores.values():
            store.close()

    def _shown(self, name: str, of: Sequence[str]) -> dict[str, str]:
        """Return the names of a study's runs on the page; for a folder they start with the study's name."""
        if self.is_single and not (name in self.logs and len(of) == 1):
            return {run: run for run in of}
        return {run: name if len(of) == 1 else f"{name}/{run}" for run in of}

    def _logged(self, columns: "Sequence[str] | set[str]") -> dict[str, dict[str, str]]:
        keys = [(f"{LOG} {column}", column) for column in columns]
        return {key: {"key": key, "name": feature_words(key) or column, "kind": LOG} for key, column in keys}

    def _name(self, key: str) -> str:
        return feature_words(key) or self._assets.names.get(key, key)

    def _order(self, key: str) -> tuple[int, str]:
        place = {name: i for i, name in enumerate([*self._assets.layer_quantities, *MEASURED])}
        return len(place) + 1 if key in LAST else place.get(key, len(place)), feature_words(key) or key

    def _ordered(self, features: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
        """Order features: the main ones first, then other measured ones, then the log; each says in which group."""
        main = {name: i for i, name in enumerate([*self._assets.names, *MEASURED])}

        def order(each: Mapping[str, str]) -> tuple[bool, int, bool, int, str]:
            kind = KINDS.index(each["kind"]) if each["kind"] in KINDS else len(KINDS)
            return each["kind"] == LOG, main.get(each["key"], len(main)), each["key"] in LAST, kind, each["name"]

        ordered = sorted(features.values(), key=order) or [{"key": LOSS, "name": feature_words(LOSS), "kind": LOG}]
        return [{**each, "group": "main" if each["key"] in main else each["kind"]} for each in ordered]
