"""Collects what a page is sent: new rows of its charts, and the status of the runs."""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toposcope.report.live import cool_down
from toposcope.report.live import database as db
from toposcope.report.live.assets import Assets
from toposcope.report.live.database import Row, columns, rows_a_run, thinned
from toposcope.report.live.judge import Judge
from toposcope.report.live.layer_map import LayerTable, layer_map
from toposcope.report.live.mirror import LogMirror, MirroredLogs
from toposcope.report.live.status import Status, status_of
from toposcope.report.naming import LOG, MEASURED, feature_words, layer_labels
from toposcope.report.tuning import MAX_CELLS

LOSS = f"{LOG} loss"
LOGGED_CHARTS = {
    "explore-loss": "loss",
    "explore-validation": "validation_loss",
    "live-rate": "learning_rate",
    "live-gradient": "grad_norm",
}
"""The columns of the log that every page draws; validation losses are drawn into the chart of the loss."""
MEASURED_CHARTS = {"live-gradient": "training gradient_norm", "live-ratio": "training update_ratio"}
"""The measured quantities that every page draws; a gradient norm only if none is logged."""
SMALL_CHART_SHARE, MIN_SMALL_ROWS = 2, 40  # a small chart has the rows of a large one divided by this, at least so many
BLOCKS = "activations"  # the probe that measures blocks instead of layers
LAST = ("training nonfinite", "training nonfinite_gradients")
KINDS = ("topology", "spectrum", "norm", "loss", "control")
MAX_STUDIES = 1 << 12  # studies of a folder on one page; the page says how many more there are
MAX_DRAWN = 128  # of them, those in the charts; the answer and the table are of all
MAX_MAP_STEPS = 48  # columns of the layer map; with more steps, neighbours share a column
MAX_TABLES = 4

Position = dict[str, Any]
"""What a page has received, by study; JSON, so that the page can send it back to a restarted server."""


@dataclass(frozen=True)
class View:
    """What a page shows besides the loss of all runs."""

    study: str = ""  # name of one study of a folder; all of them if empty
    feature: str = ""  # key of the quantity that is drawn for all runs
    run: str = ""  # selection of the layer map and of the line of one layer
    quantity: str = ""  # of the layer map and of the line of one layer
    layer: str = ""  # of that line


@dataclass(frozen=True)
class Part:
    """What a message has of one study."""

    version: tuple[
        int, ...
    ]  # of the database, studies on the page, whether drawn, stored cool-down, looks of the judge
    statuses: list[Status]
    catalogue: dict[str, Any]
    lines: list[dict[str, Any]]
    position: Position


class StudyFeed:
    """One study: its database, and a cache of its content."""

    def __init__(self, directory: Path, assets: Assets, name: str = "", *, is_log: bool = False) -> None:
        self.directory = directory
        self.name = name or directory.resolve().name
        self.beside = directory  # where a measured cool-down is stored
        self.database = db.Database(directory / "study.db")
        self.judge = Judge(None if is_log else directory)
        self._stamp, self._was_due = 0, False
        self._assets = assets
        self._coarse: dict[tuple[str, str], tuple[tuple[int, int], list[Row]]] = {}
        self._tables: dict[tuple[str, str], tuple[int, LayerTable]] = {}
        self._seen: dict[str, int] = {}
        self._quantities: dict[str, db.Quantity] = {}
        self._by_run: dict[str, list[str]] = {}
        self._columns: dict[str, list[str]] = {}
        self.seen: Part | None = None  # what the last message had of this study

    def has_changed(self) -> bool:
        """Return whether anything is new since the last call: rows, the stored cool-down, or the health of a run."""
        has_rows, stamp = self.database.has_changed(), cool_down.stamp(self.beside)
        is_due = self.judge.is_due(self.database.n_changes)
        is_new = has_rows or stamp != self._stamp or (is_due and not self._was_due)
        self._stamp, self._was_due = stamp, is_due
        return is_new

    def with_cool_down(self, c: sqlite3.Connection, row: db.RunRow, status: Status) -> Status:
        """Return the status of the only run with what is known of a cool-down from now on."""
        return replace(
            status,
            cool_down=cool_down.measured_words(self.beside, status.step),
            to_measure=cool_down.how_to_measure(c, row.run, self.beside.resolve(), db.meta(c, f"monitor {row.run}")),
        )

    def catalogue(self, c: sqlite3.Connection, runs: Sequence[db.RunRow]) -> dict[str, Any]:
        """Return what can be selected: features of the network and of the log, and quantities of layers by run."""
        features: dict[str, dict[str, str]] = {}
        layers: dict[str, dict[str, Any]] = {}
        for row in runs:
            self._look_at(c, row.run)
            for key in self._by_run.get(f"network {row.run}", ()):
                features.setdefault(key, self._feature(c, key))
            names = [*db.layer_names(c, row.run), *db.block_names(c, row.run)]
            keys = sorted(self._by_run.get(f"layers {row.run}", ()), key=self._order)
            if names and keys:
                titles = [self._name(key) for key in keys]
                layers[row.run] = {"names": names, "labels": layer_labels(names), "keys": keys, "titles": titles}
            self._columns[row.run] = db.logged_columns(c, row.run)
            for column in self._columns[row.run]:
                key = f"{LOG} {column}"
                self._quantities[key] = db.Quantity(LOG, "", column)
                features.setdefault(key, {"key": key, "name": feature_words(key) or column, "kind": LOG})
        return {"features": features, "layers": layers}

    def _look_at(self, c: sqlite3.Connection, run: str) -> None:
        """Find the measured quantities of a run, at a few steps at first and at every new step."""
        steps = db.measured_steps(c, run, self._seen.get(run, -1))
        if not steps:
            return
        for quantity, of_network in db.quantities(c, run, db.examples(steps)):
            key = self._key(quantity)
            self._quantities[key] = quantity
            known = self._by_run.setdefault(f"{'network' if of_network else 'layers'} {run}", [])
            if key not in known:
                known.append(key)
        # The last step may still be measured by further probes.
        self._seen[run] = steps[-2] if len(steps) > 1 else -1

    def _key(self, quantity: db.Quantity) -> str:
        return f"{self._assets.label(quantity.probe, quantity.options)} {quantity.statistic}"

    def _feature(self, c: sqlite3.Connection, key: str) -> dict[str, str]:
        quantity = self._quantities[key]
        pair = (quantity.probe, quantity.statistic)
        kind = c.execute("SELECT kind FROM kinds WHERE probe = ? AND statistic = ?", pair).fetchone()
        return {"key": key, "name": self._name(key), "kind": kind[0] if kind else "control"}

    def _name(self, key: str) -> str:
        return feature_words(key) or self._assets.names.get(key, key)

    def _order(self, key: str) -> tuple[int, str]:
        place = {name: i for i, name in enumerate([*self._assets.layer_quantities, *MEASURED])}
        return len(place) + 1 if key in LAST else place.get(key, len(place)), feature_words(key) or key

    # ---- Lines

    def lines(
        self, c: sqlite3.Connection, run: str, shown: str, view: View, known: Position, at_most: int
    ) -> tuple[list[dict[str, Any]], Position]:
        """Return the rows of a run that a page does not have, by chart, and the page's new position."""
        position = db.log_position(c, run)
        measured = [
            int(c.execute("SELECT COALESCE(MAX(id), 0) FROM measurements").fetchone()[0]),
            db.n_measured(c, run),
        ]
        log = known.get("log")
        is_continued = log is not None and db.log_is_continued(c, run, log)
        after, lines = log[0] if log is not None and is_continued else -1, []
        for chart, column in self._logs_of(run, view):
            most, end = _rows_in(chart, at_most), position[0]
            new = db.logged(c, run, column, after, end, most) if is_continued else None
            rows = self._whole(c, run, column, position, most) if new is None else new
            rows = rows + db.logged(c, run, column, end, 1 << 62, most)
            lines.append({"after": after, "rows": columns(rows), "chart": chart})
        places = {axis: db.along(c, run, axis, after) for axis in db.AXES}
        lines += [{"chart": axis, "after": after, "rows": rows} for axis, rows in places.items() if rows["step"]]
        if not is_continued or known["measured"] != measured:
            query = "SELECT MIN(step) FROM measurements WHERE id > ? AND run = ?"
            first = c.execute(query, (known["measured"][0], run)).fetchone()[0] if is_continued else 0
            if first is not None:
                lines += self._measured(c, run, shown, view, first, at_most)
        return [line | {"run": shown} for line in lines], {"log": list(position), "measured": measured}

    def _logs_of(self, run: str, view: View) -> Iterator[tuple[str, str]]:
        logged = self._columns[run]
        for chart, column in LOGGED_CHARTS.items():
            if column in logged:
                yield chart, column
        quantity = self._quantities.get(view.feature)
        if quantity is not None and quantity.probe == LOG:
            yield "explore-feature", quantity.statistic

    def status(self, c: sqlite3.Connection, row: db.RunRow, shown: str, at_most: int) -> Status:
        """Return the status of a run."""
        column, validation = "validation_loss", list[Row]()
        if column in self._columns[row.run]:
            position = db.log_position(c, row.run)
            whole = self._whole(c, row.run, column, position, at_most)
            validation = whole + db.logged(c, row.run, column, position[0], 1 << 62, at_most)
        return status_of(c, row, shown, self.database.written(), validation, self.judge.health(c, row))

    def _whole(self, c: sqlite3.Connection, run: str, column: str, now: tuple[int, int], at_most: int) -> list[Row]:
        """Return a whole log: the cached rows, and new ones."""
        position, rows = self._coarse.get((run, column), (None, []))
        if position is not None and position[0] <= now[0] and db.log_is_continued(c, run, position):
            rows = rows + db.logged(c, run, column, position[0], now[0], at_most)
        else:
            rows = db.logged(c, run, column, -1, now[0], at_most)
        if len(rows) > 2 * at_most:
            rows = thinned(rows, at_most)
        self._coarse[run, column] = now, rows
        return rows

    def _measured(
        self, c: sqlite3.Connection, run: str, shown: str, view: View, first: int, at_most: int
    ) -> Iterator[dict[str, Any]]:
        wanted = [("explore-feature", "network", view.feature)]
        wanted += [(chart, "network", key) for chart, key in MEASURED_CHARTS.items() if self._is_measured(run, chart)]
        if shown == view.run:
            wanted.append(("layer-lines", view.layer, view.quantity))
        n = len(db.measured_steps(c, run))
        for chart, layer, key in wanted:
            # A line with more steps than rows is thinned again, so it is sent whole.
            after = first - 1 if n <= _rows_in(chart, at_most) else -1
            quantity = self._quantities.get(key)
            if quantity is not None and quantity.probe != LOG:
                rows = db.measured(c, run, layer, quantity, after, _rows_in(chart, at_most))
                if not rows and layer == "network":  # a cloud of all layers has this name
                    rows = db.measured(c, run, "pooled", quantity, after, _rows_in(chart, at_most))
                yield {"chart": chart, "after": after, "rows": columns(rows)}
        if shown == view.run and view.quantity in self._quantities:
            yield {"chart": "layer-map", "after": -1, **self._map(c, run, view.quantity, first)}

    def _is_measured(self, run: str, chart: str) -> bool:
        """Return whether a chart of a measured quantity is not that of a logged one."""
        return LOGGED_CHARTS.get(chart) not in self._columns[run]

    def _map(self, c: sqlite3.Connection, run: str, key: str, first: int) -> dict[str, Any]:
        names = db.block_names if self._quantities[key].probe == BLOCKS else db.layer_names
        layers, steps = names(c, run), db.measured_steps(c, run)
        every = max(1, -(-len(steps) * len(layers) // MAX_CELLS))
        old_every, table = self._tables.pop((run, key), (0, LayerTable(())))
        if old_every != every or table.layers != layers:
            table = LayerTable(layers)
        table.cut(first)
        last = table.steps[-1] if table.steps else -1
        table.extend(c, run, self._quantities[key], [step for step in steps[::every] if step > last])
        self._tables[run, key] = every, table
        while len(self._tables) > MAX_TABLES:
            self._tables.pop(next(iter(self._tables)))
        rows, width = layer_map(table, MAX_MAP_STEPS)
        if width == 1:
            return {"rows": rows, "note": ""}
        n = width * every
        note = f"Each column stands for {n} measured steps, with each layer's most unusual value among them."
        return {"rows": rows, "note": note}

    def detail(
        self, c: sqlite3.Connection, run: str, chart: str, view: View, between: tuple[int, int], at_most: int
    ) -> dict[str, Any] | None:
        """Return the rows of a line from one step to another; None if the chart has no line of this run."""
        first, last = between
        key = f"{LOG} {LOGGED_CHARTS[chart]}" if chart in LOGGED_CHARTS else ""
        if not key or (chart in MEASURED_CHARTS and self._is_measured(run, chart)):
            key = {**MEASURED_CHARTS, "explore-feature": view.feature, "layer-lines": view.quantity}.get(chart, key)
        quantity = self._quantities.get(key) or (db.Quantity(LOG, "", "loss") if key == LOSS else None)
        if quantity is None:
            return None
        if quantity.probe == LOG:
            rows = db.logged(c, run, quantity.statistic, first - 1, last, at_most)
        else:
            layer = view.layer if chart == "layer-lines" else "network"
            rows = db.measured(c, run, layer, quantity, first - 1, at_most, last)
        return {"chart": chart, "rows": columns(rows)}


def _rows_in(chart: str, at_most: int) -> int:
    """Return the number of rows of a run in a chart."""
    return max(min(at_most, MIN_SMALL_ROWS), at_most // SMALL_CHART_SHARE) if chart.startswith("live-") else at_most


class Feed:
    """The studies of a folder, or one study; and the logs there that nobody monitors, as studies."""

    def __init__(self, directory: Path, assets: Assets, mirror: LogMirror | None = None) -> None:
        self.directory = directory
        self._assets, self._mirror = assets, mirror
        self._mirrored = MirroredLogs()
        self._lock = threading.Lock()
        self.studies: dict[str, StudyFeed] = {}
        self.left_out = 0
        self.discover()

    @property
    def is_single(self) -> bool:
        """Whether there is one study, and its place is the directory, or it is the log there."""
        return len(self.studies) == 1 and (
            next(iter(self.studies.values())).directory == self.directory or len(self._mirrored.studies) == 1
        )

    def is_log(self, name: str) -> bool:
        """Return whether a study is a log that nobody monitors."""
        return name in self.studies and str(self.studies[name].directory) in self._mirrored.studies.values()

    def discover(self) -> bool:
        """Find new studies and drop deleted ones; return whether the set changed."""
        if (self.directory / "study.db").is_file():
            found = [self.directory]
        else:
            try:
                found = sorted(path.parent for path in self.directory.glob("*/study.db"))
            except OSError:
                found = []
        before = self._mirrored
        self._mirrored = self._mirror.look() if self._mirror is not None else before
        every = [(path.resolve().name, path) for path in found]
        own = {name for name, _ in every}
        every += [(f"{n} (log)" if n in own else n, Path(folder)) for n, folder in self._mirrored.studies.items()]
        self.left_out = max(0, len(every) - MAX_STUDIES)
        wanted = dict(every[:MAX_STUDIES])
        with self._lock:
            known = {name: study.directory for name, study in self.studies.items()}
            if wanted == known:
                return self._mirrored != before
            for name in [name for name, path in known.items() if wanted.get(name) != path]:
                self.studies.pop(name).database.close()
            self.studies = {
                name: self.studies.get(name) or StudyFeed(path, self._assets, name, is_log=path not in found)
                for name, path in wanted.items()
            }
            return True

    def has_changed(self) -> bool:
        """Return whether anything was written since the last call."""
        changed = [study.has_changed() for study in list(self.studies.values())]  # no short-circuit
        return any(changed)

    def message(self, view: View, known: Position) -> tuple[dict[str, Any], Position]:
        """Return the message for a page with a view and a position, and the page's new position."""
        parts: dict[str, Part] = {}
        faults = {fault: fault for fault in self._mirrored.faults}
        with self._lock:
            chosen = [study for name, study in self.studies.items() if view.study in ("", name)]
            if len(chosen) > MAX_DRAWN:
                faults["drawn"] = (
                    f"The charts show the first {MAX_DRAWN} of {len(chosen):,} by name; the table has all, and links "
                    "to the page of each"
                )
            for place, study in enumerate(chosen):
                try:
                    is_drawn = place < MAX_DRAWN
                    parts[study.name] = self._part(
                        study, view, known.get(study.name, {}), len(chosen), is_drawn=is_drawn
                    )
                except sqlite3.Error as error:
                    faults[study.name] = f"{study.database.path}: cannot be read at the moment ({error})"
        statuses = [status for part in parts.values() for status in part.statuses]
        catalogue: dict[str, Any] = {"features": {}, "layers": {}}
        for part in parts.values():
            for name, of in catalogue.items():
                of |= part.catalogue[name]
        return {
            "runs": [status.name for status in statuses],
            "studies": {status.name: name for name, part in parts.items() for status in part.statuses},
            **self._ordered(catalogue),
            "lines": [line for part in parts.values() for line in part.lines],
            "statuses": statuses,
            "faults": faults,
            "not_shown": "" if view.study else self._mirrored.not_shown,
        }, {name: part.position for name, part in parts.items()}

    def _part(self, study: StudyFeed, view: View, known: Position, n_studies: int, *, is_drawn: bool) -> Part:
        """Return what a page does not have of a study; nothing is read if nothing was written since the last one."""
        if self.is_log(study.name) and self.is_single and self.directory.is_dir():
            study.beside = self.directory
        study.judge.look(study.database.n_changes)
        version = study.database.n_changes, n_studies, is_drawn, cool_down.stamp(study.beside), study.judge.n_looks
        seen = study.seen
        if seen is not None and seen.version == version and seen.position == known:
            return replace(seen, lines=[])
        with study.database.reading() as c:
            rows = db.runs(c)
            names = self._shown(study, [row.run for row in rows])
            found = study.catalogue(c, rows)
            at_most = rows_a_run(len(rows) * min(n_studies, MAX_DRAWN))
            lines, position = [], {}
            for row in rows if is_drawn else ():
                new, position[row.run] = study.lines(c, row.run, names[row.run], view, known.get(row.run, {}), at_most)
                lines += new
            statuses = [study.status(c, row, names[row.run], at_most) for row in rows]
            if len(rows) == n_studies == 1:
                statuses = [study.with_cool_down(c, rows[0], statuses[0])]
        catalogue = {**found, "layers": {names[run]: of for run, of in found["layers"].items()}}
        study.seen = Part(version, statuses, catalogue, lines, position)
        return study.seen

    def detail(self, view: View, chart: str, between: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the rows of a chart between two steps, for every run."""
        details = []
        with self._lock:
            chosen = [study for name, study in self.studies.items() if view.study in ("", name)]
            for study in chosen[:MAX_DRAWN]:
                with study.database.reading() as c:
                    rows = db.runs(c)
                    names = self._shown(study, [row.run for row in rows])
                    study.catalogue(c, rows)
                    for row in rows:
                        shown = names[row.run]
                        if chart != "layer-lines" or shown == view.run:
                            for each in (chart, "explore-validation") if chart == "explore-loss" else (chart,):
                                of_run = study.detail(c, row.run, each, view, between, rows_a_run(len(rows)))
                                details += [of_run | {"run": shown}] if of_run else []
        return details

    def growth(self, name: str) -> tuple[int, int, int]:
        """Return the numbers of measured steps of the longest run and of all runs, and the last step."""
        with self.studies[name].database.reading() as c:
            rows = c.execute("SELECT COUNT(*), MAX(step) FROM checkpoints GROUP BY run").fetchall()
        return max((n for n, _ in rows), default=0), sum(n for n, _ in rows), max((s for _, s in rows), default=0)

    def close(self) -> None:
        """Close the files, and end the process that reads logs."""
        if self._mirror is not None:
            self._mirror.close()
        for study in self.studies.values():
            study.database.close()

    def _shown(self, study: StudyFeed, runs: Sequence[str]) -> dict[str, str]:
        """Return the names of a study's runs on the page; for a folder they start with the study's name."""
        if self.is_single and not (self.is_log(study.name) and len(runs) == 1):
            return {run: run for run in runs}
        return {run: study.name if len(runs) == 1 else f"{study.name}/{run}" for run in runs}

    def _ordered(self, catalogue: Mapping[str, Any]) -> dict[str, Any]:
        """Order features: the main ones first, then other measured ones, then the log; each says in which group."""
        main = {name: i for i, name in enumerate([*self._assets.names, *MEASURED])}

        def order(each: Mapping[str, str]) -> tuple[bool, int, bool, int, str]:
            kind = KINDS.index(each["kind"]) if each["kind"] in KINDS else len(KINDS)
            return each["kind"] == LOG, main.get(each["key"], len(main)), each["key"] in LAST, kind, each["name"]

        features = catalogue["features"] or {LOSS: {"key": LOSS, "name": feature_words(LOSS), "kind": LOG}}
        ordered = sorted(features.values(), key=order)
        grouped = [{**each, "group": "main" if each["key"] in main else each["kind"]} for each in ordered]
        return {"features": grouped, "layers": catalogue["layers"]}
