"""The database of a study: SQLite in WAL mode, one writer, any number of readers. The schema is in ``schema.sql``."""

import json
import math
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from toposcope.databases import SCHEMA_VERSION, refuse_schema, refuse_views
from toposcope.errors import ToposcopeError
from toposcope.files import write_all_bytes
from toposcope.integrity import CheckpointSummary, Finding
from toposcope.logs import COLUMNS, LogTable
from toposcope.logs.formats.study import nan_steps
from toposcope.probes import Measurement
from toposcope.study import damage, tables
from toposcope.study.diagrams import Source, stored_diagrams
from toposcope.study.kinds import PUBLISHED
from toposcope.study.tables import CheckpointRow, LayerRow, Unit, insert

_WITH_STEPS = (
    *("log", "log_targets", "log_nan", "times", "checkpoints", "layers", "evidence"),
    *("measurements", "alerts", "forecasts", "errors"),
)
_PLACE = ("run", "step")
MAX_ROW_BYTES = 1 << 16  # a diagram file up to this size is a row, which SQLite writes sooner than the system a file


class Store:
    """The only writer of a study's database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._joined = False
        self._replaced: list[Path] = []  # files to delete once the rows that replace them are committed
        self.dropped: list[str] = []
        with self._readable_errors():
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            refuse_views(self._connection)
            self._check_structure()
            refuse_schema(self._connection)
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.executescript(resources.files(__package__).joinpath("schema.sql").read_text("utf-8"))
            damage.keep_checksums(self._connection)
        self._drop_damaged()
        if self.meta("schema_version") is None:
            self.set_meta("schema_version", SCHEMA_VERSION)

    def _check_structure(self) -> None:
        """Refuse a file whose pages disagree; indexes alone are made again."""
        if not damage.is_whole(self._connection):
            with suppress(sqlite3.Error):
                self._connection.execute("REINDEX")
            if not damage.is_whole(self._connection):
                raise sqlite3.DatabaseError("damaged: its pages do not agree with each other")

    def _drop_damaged(self) -> None:
        """Delete the groups of rows that are not as they were written, so that they are made again."""
        with self._readable_errors():
            damaged = list(damage.damaged(self._connection))
        if not damaged:
            return
        with self._transaction() as c:
            for group in damaged:
                damage.drop(c, group)
            tables.has_lost_rows(c)
            c.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (SCHEMA_VERSION,))
            c.execute("DELETE FROM kinds")
            tables.put_kinds(c, tables.stored_statistics(c))
        self.dropped = [str(group) for group in damaged]

    def close(self) -> None:
        """Close the database; what was committed stays."""
        self._connection.close()

    @property
    def n_changes(self) -> int:
        """Number of rows written since the store was opened."""
        return self._connection.total_changes

    def meta(self, key: str) -> str | None:
        """Return one fact about the study."""
        return self._text("SELECT value FROM meta WHERE key = ?", key)

    def set_meta(self, key: str, value: str) -> None:
        """Store one fact about the study."""
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def put_run(self, run: str, position: int, kind: str, n_parameters: int | None, source: str) -> None:
        """Declare a run; its status is ``running`` until `set_status`."""
        columns = ("position", "kind", "n_parameters", "source")
        old, new = ", ".join(columns), ", ".join(f"excluded.{name}" for name in columns)
        self._write(
            "INSERT INTO runs VALUES (?, ?, ?, ?, 'running', NULL, ?) ON CONFLICT (run) DO UPDATE "
            f"SET ({old}) = ({new}) WHERE ({old}) IS NOT ({new})",
            *(run, position, kind, n_parameters, source),
        )

    def set_n_parameters(self, run: str, n_parameters: int) -> None:
        """Store the number of parameters of a run's model."""
        self._write("UPDATE runs SET n_parameters = ? WHERE run = ?", n_parameters, run)

    def set_status(self, run: str, status: str, last_step: int | None) -> None:
        """Store the status of a run."""
        query = "UPDATE runs SET status = ?, last_step = ? WHERE run = ? AND (status, last_step) IS NOT (?, ?)"
        self._write(query, status, last_step, run, status, last_step)

    def status(self, run: str) -> str | None:
        """Return the status of a run."""
        return self._text("SELECT status FROM runs WHERE run = ?", run)

    def kind(self, run: str) -> str | None:
        """Return the kind of a run; None if there is no run of that name."""
        return self._text("SELECT kind FROM runs WHERE run = ?", run)

    def put_log(self, run: str, log: LogTable | None) -> None:
        """Store the training log of a run: rows are written from the first step on that is new or has changed.

        NaN is stored in a table of its own. None deletes the stored log.
        """
        with self._transaction() as c:
            tables.replace_log(c, run, log or LogTable.from_rows({}))

    def append_log(self, run: str, rows: Mapping[int, Mapping[str, float]], reached: float | None = None) -> None:
        """Add rows to the training log of a run, or columns to stored rows, without reading the rest of it.

        `reached` is the time at which the run had got to the last of them, in seconds since 1970.
        """
        with self._transaction() as c:
            tables.append_log(c, run, rows)
            if rows and reached is not None:
                insert(c, "times", ("run", "step", "seconds"), [(run, max(rows), reached)], replace=True)

    def log_rows(self, run: str) -> dict[int, dict[str, float]]:
        """Return the training log of a run by step, without further targets; what was not logged is absent."""
        rows = self._rows(f"SELECT step, {', '.join(COLUMNS)} FROM log WHERE run = ? ORDER BY step", run)
        found = {step: {n: v for n, v in zip(COLUMNS, row, strict=True) if v is not None} for step, *row in rows}
        with self._readable_errors():
            nan = nan_steps(self._connection, run)
        for name in nan.keys() & set(COLUMNS):
            for step in nan[name]:
                found[step][name] = math.nan
        return found

    def cut(self, run: str, step: int) -> None:
        """Delete what was logged, measured and noticed of a run after a step: training went on from there."""
        with self._transaction() as c:
            deleted = [
                c.execute(f"DELETE FROM {table} WHERE run = ? AND step > ?", (run, step)) for table in _WITH_STEPS
            ]
            if any(each.rowcount for each in deleted):
                tables.has_lost_rows(c)

    def last_step(self, run: str) -> int | None:
        """Return the last step of which anything is stored of a run."""
        tables = ("log", "log_targets", "checkpoints", "measurements")
        query = " UNION ALL ".join(f"SELECT MAX(step) AS step FROM {table} WHERE run = ?" for table in tables)
        rows = self._rows(f"SELECT MAX(step) FROM ({query})", *(run,) * len(tables))
        return None if rows[0][0] is None else int(rows[0][0])

    def put_alert(self, run: str, check: str, step: int, since: int, place: str, message: str, evidence: str) -> None:
        """Store what a monitor noticed, unless it is stored already; `evidence` is a JSON object of numbers."""
        self._write(
            "INSERT OR IGNORE INTO alerts (run, check_name, step, since, place, message, evidence) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(run, check, step, since, place, message, evidence),
        )

    def put_forecast(
        self, run: str, step: int, last_step: int, loss: float, low: float, high: float, advice: str, target: str
    ) -> None:
        """Store a forecast of the final loss, in nats per token, with its 90% interval; one already stored stays."""
        self._write(
            "INSERT OR IGNORE INTO forecasts (run, step, last_step, loss, low, high, advice, target) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(run, step, last_step, loss, low, high, advice, target),
        )

    def last_diagrams(self, run: str) -> dict[tuple[str, str], dict[str, str]]:
        """Return by name and options of a probe, and by layer, the diagram file of its last measurement; may be empty.

        Probes and layers without diagrams are absent.
        """
        found: dict[tuple[str, str], dict[str, str]] = {}
        query = "SELECT probe, options, layer, diagrams, MAX(step) FROM measurements WHERE run = ? GROUP BY 1, 2, 3"
        for probe, options, layer, file, _ in self._rows(query, run):
            found.setdefault((probe, options), {})[layer] = file
        return found

    def n_measured_updates(self, run: str) -> int:
        """Return the number of steps of a run at which a monitor measured the update."""
        query = "SELECT COUNT(DISTINCT step) FROM measurements JOIN features ON measurement = id"
        rows = self._rows(f"{query} WHERE run = ? AND probe = 'training' AND statistic = 'update_norm'", run)
        return int(rows[0][0])

    def checkpoint_steps(self, run: str) -> set[int]:
        """Return the steps of the known checkpoints of a run."""
        return {step for (step,) in self._rows("SELECT step FROM checkpoints WHERE run = ?", run)}

    def checkpoints(self, run: str) -> dict[int, CheckpointRow]:
        """Return the known checkpoints of a run by step."""
        layers: dict[int, list[LayerRow]] = {}
        query = f"SELECT step, {', '.join(LayerRow._fields)} FROM layers WHERE run = ? ORDER BY position"
        for step, *row in self._rows(query, run):
            layers.setdefault(step, []).append(LayerRow(*row))
        query = "SELECT step, path, fingerprint, weights_hash FROM checkpoints WHERE run = ? ORDER BY step"
        return {
            step: CheckpointRow(run, step, path, fingerprint, weights_hash, tuple(layers.get(step, ())))
            for step, path, fingerprint, weights_hash in self._rows(query, run)
        }

    def put_checkpoints(self, read: Sequence[tuple[CheckpointRow, CheckpointSummary | None]]) -> None:
        """Store checkpoints that were read, with their summaries, in one transaction; each must be of another place.

        Measurements of layers that a checkpoint no longer has are deleted.
        """
        own: list[tuple[Any, ...]] = []
        layers: list[tuple[Any, ...]] = []
        evidence: list[tuple[Any, ...]] = []
        rows = {(row.run, row.step): row for row, _ in read}
        for row, summary in read:
            place = (row.run, row.step)
            own.append((*place, row.path, row.fingerprint, row.weights_hash))
            layers += [(*place, r.layer, i, *r[1:]) for i, r in enumerate(row.layers)]
            evidence += [] if summary is None else [(*place, msgspec.msgpack.encode(summary))]
        with self._transaction() as c:
            for place, row in rows.items():
                tables.forget(c, *place)
                tables.update_measurements(c, row)
            insert(c, "checkpoints", (*_PLACE, "path", "fingerprint", "weights_hash"), own)
            insert(c, "layers", (*_PLACE, "layer", "position", *LayerRow._fields[1:]), layers)
            insert(c, "evidence", (*_PLACE, "content"), evidence)

    def evidence(self, run: str) -> dict[int, bytes]:
        """Return the encoded summaries of the checkpoints of a run, by step, without those that cannot be decoded."""
        found = {}
        for step, content in self._rows("SELECT step, content FROM evidence WHERE run = ? ORDER BY step", run):
            with suppress(msgspec.MsgspecError):  # of another version, or damaged: that checkpoint is read again
                msgspec.msgpack.decode(content, type=CheckpointSummary)
                found[step] = content
        return found

    def put_evidence(self, run: str, step: int, evidence: CheckpointSummary) -> None:
        """Store the summary of a checkpoint, from which the doctor judges it."""
        content = msgspec.msgpack.encode(evidence)
        self._write("INSERT OR REPLACE INTO evidence VALUES (?, ?, ?)", run, step, content)

    def n_findings(self, run: str) -> int:
        """Return how many findings of the doctor are stored of a run."""
        return int(self._rows("SELECT COUNT(*) FROM findings WHERE run = ?", run)[0][0])

    def put_findings(self, run: str, findings: Sequence[Finding]) -> None:
        """Replace what the doctor found in a run."""
        rows = [
            (run, i, f.check, f.severity, json.dumps(list(f.steps)), f.layer, f.message) for i, f in enumerate(findings)
        ]
        with self._transaction() as c:
            c.execute("DELETE FROM findings WHERE run = ?", (run,))
            c.executemany("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def drop_checkpoints(self, run: str, steps: Iterable[int]) -> None:
        """Delete checkpoints that are gone or cannot be read, with their measurements."""
        steps = list(steps)
        if not steps:
            return
        with self._transaction() as c:
            for step in steps:
                tables.forget(c, run, step)
                c.execute("DELETE FROM measurements WHERE run = ? AND step = ? AND probe <> ?", (run, step, PUBLISHED))
            tables.has_lost_rows(c)

    def measured(self, run: str, steps: Iterable[int]) -> dict[Unit, tuple[str, str]]:
        """Return key and diagram file of everything measured on a run at some steps."""
        query = "SELECT step, layer, probe, options, key, diagrams FROM measurements WHERE run = ? AND step"
        rows = self._rows(f"{query} IN (SELECT value FROM json_each(?))", run, json.dumps(sorted(steps)))
        return {Unit(run, *row[:4]): (row[4], row[5]) for row in rows}

    def measured_layers(self, unit: Unit) -> set[str]:
        """Return the layers that one probe has measured on a checkpoint, whatever the layer of the unit."""
        query = "SELECT layer FROM measurements WHERE run = ? AND step = ? AND probe = ? AND options = ?"
        return {layer for (layer,) in self._rows(query, unit.run, unit.step, unit.probe, unit.options)}

    def statistics(self, run: str, step: int, probe: str, options: str) -> dict[str, dict[str, float]]:
        """Return what one probe measured on a checkpoint, by layer."""
        statistics: dict[str, dict[str, float]] = {}
        query = (
            "SELECT layer, statistic, value FROM measurements JOIN features ON measurement = id "
            "WHERE run = ? AND step = ? AND probe = ? AND options = ?"
        )
        with self._readable_errors():  # row by row: of very many layers, all rows at once take a gigabyte
            for layer, statistic, value in self._connection.execute(query, (run, step, probe, options)):
                statistics.setdefault(layer, {})[sys.intern(statistic)] = value
        return statistics

    def put_measurements(self, rows: Iterable[tables.MeasurementRow]) -> None:
        """Store measurements (unit, key, measurement, diagram file) in one transaction, replacing older ones."""
        rows = list(rows)
        kinds = {(unit.probe, name) for unit, _, measurement, _ in rows for name in measurement.statistics}
        with self._transaction() as c:
            tables.insert_measurements(c, rows)
            tables.put_kinds(c, kinds)

    def put_diagrams(self, contents: Mapping[str, bytes]) -> None:
        """Store diagram files, by their paths in the study's folder: small ones as rows; the others are files already.

        See `write_large_diagrams`.
        """
        small = [(file, content) for file, content in contents.items() if len(content) <= MAX_ROW_BYTES]
        large = [(file,) for file, content in contents.items() if len(content) > MAX_ROW_BYTES]
        with self._transaction() as c:
            c.executemany("INSERT OR REPLACE INTO diagrams VALUES (?, ?)", small)
            c.executemany("DELETE FROM diagrams WHERE file = ?", large)
            if (self.path.parent / "diagrams").exists():  # they were large before
                self._replaced += [self.path.parent / file for file, _ in small]

    def diagrams(self, file: str) -> Source | None:
        """Return where a diagram file is stored; None if it is nowhere."""
        with self._readable_errors():
            return stored_diagrams(self._connection, self.path, file)

    def drop_unused_diagrams(self) -> None:
        """Delete the diagrams in rows that no measurement points to any more."""
        with self._transaction() as c:
            c.execute("DELETE FROM diagrams WHERE file NOT IN (SELECT diagrams FROM measurements)")

    def put_published(self, run: str, key: str, features: Mapping[int, Mapping[str, float]]) -> None:
        """Store the published features of a run, by step, unless they are stored under the same key already."""
        units = {step: Unit(run, step, "network", PUBLISHED, "{}") for step in features}
        known = self._rows("SELECT step, key FROM measurements WHERE run = ? AND probe = ?", run, PUBLISHED)
        if sorted(known) == [(step, key) for step in sorted(units)]:
            return
        with self._transaction() as c:
            c.execute("DELETE FROM measurements WHERE run = ? AND probe = ?", (run, PUBLISHED))
            measured = ((units[s], key, Measurement("network", "network", dict(f)), "") for s, f in features.items())
            tables.insert_measurements(c, measured)
            tables.put_kinds(c, {(PUBLISHED, name) for statistics in features.values() for name in statistics})
            tables.has_lost_rows(c)

    def drop_measurements(self, units: Iterable[Unit]) -> None:
        """Delete measurements of tensors, or by probe versions, that are no longer current."""
        rows = list(units)
        if not rows:
            return
        with self._transaction() as c:
            tables.delete_units(c, rows)

    def clear_errors(self) -> None:
        """Delete the errors of the last run of the study."""
        self._write("DELETE FROM errors")

    def put_errors(self, errors: Mapping[Unit, str]) -> None:
        """Store what failed."""
        if not errors:
            return
        query = "INSERT INTO errors VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET message = excluded.message"
        with self._transaction() as c:
            c.executemany(
                f"{query} WHERE message <> excluded.message", [(*unit, text) for unit, text in errors.items()]
            )

    def _write(self, query: str, *values: str | float | bytes | None) -> None:
        """Make one change."""
        with self._transaction() as c:
            c.execute(query, values)

    def _text(self, query: str, key: str) -> str | None:
        rows = self._rows(query, key)
        return str(rows[0][0]) if rows else None

    def _rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        with self._readable_errors():
            return self._connection.execute(query, parameters).fetchall()

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Store everything that is put within this context in one transaction, or nothing if anything fails."""
        with self._transaction():
            self._joined = True
            try:
                yield
            finally:
                self._joined = False

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._joined:  # `together` ends it
            yield self._connection
            return
        with self._readable_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
                for path in self._replaced:
                    with suppress(OSError):  # the row counts, not the file
                        path.unlink(missing_ok=True)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._replaced.clear()

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into one line that names the file and the remedy."""
        try:
            yield
        except sqlite3.Error as error:
            raise ToposcopeError(f"{self.path}: {error}; {_hint(str(error))}") from error


def write_large_diagrams(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write the diagram files that are too large to be rows, before the rows that point to them."""
    write_all_bytes({directory / file: content for file, content in contents.items() if len(content) > MAX_ROW_BYTES})


def _hint(message: str) -> str:
    if "full" in message or "disk I/O" in message:
        return "free some disk space and run the same command again"
    if "locked" in message:
        return "another program is writing to it; close that program"
    if "schema version" in message:
        return "read it with that version, or delete it and run again, which measures anew: checkpoints are kept"
    return "if it is damaged, delete it and run again: checkpoints are kept"
