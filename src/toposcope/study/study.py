"""The content of a study's directory, as frames."""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.checkpoints.weights import Coverage
from toposcope.databases import has_table, refuse_schema, refuse_views
from toposcope.errors import ToposcopeError, choices, unknown_name
from toposcope.family import SIZES
from toposcope.homology import Diagram
from toposcope.logs import COLUMNS
from toposcope.logs.formats.study import nan_steps, with_nan
from toposcope.probes.needs import needs_of
from toposcope.probes.probe import LOWERED
from toposcope.progress import Progress, silent
from toposcope.study import damage
from toposcope.study.declaration import Declaration, load_declaration
from toposcope.study.diagrams import Source, diagram_file, read_diagrams, read_states, stored_diagrams
from toposcope.study.kinds import PUBLISHED
from toposcope.version import __version__

Schema = dict[str, type[pl.DataType] | pl.DataType]
_TYPES: Schema = {
    **dict.fromkeys(("step", "since", "last_step", "n_parameters", "n_checkpoints", "measurement"), pl.Int64),
    **dict.fromkeys(("value", "loss", "low", "high", "seconds"), pl.Float64),
}
"""Of the columns that are not texts."""


def _schema(names: str) -> Schema:
    return {name: _TYPES.get(name, pl.String) for name in names.split(", ")}


def _categorical(names: str) -> Schema:
    """Return a schema without texts: millions of rows of these would take ten times the memory."""
    return {name: pl.Categorical() if kind == pl.String else kind for name, kind in _schema(names).items()}


ROWS_READ = 1 << 16  # rows that are Python objects at a time, as SQLite hands them out
MAX_MEASUREMENTS = 1 << 13  # measurements of a part of a frame, each with about ten statistics
DOUBTS = re.compile(f"{LOWERED}|no estimate|not converged|no minimum|finite differences")
"""In a flag: what it is of is in doubt, or less than was asked for."""
FRAME_SCHEMA = _schema("run, step, layer, role, probe, options, statistic, kind, value, flag")
ALERT_SCHEMA = _schema("run, check, step, since, place, message, evidence")
TIME_SCHEMA = _schema("run, step, seconds")
FORECAST_SCHEMA = _schema("run, step, last_step, loss, low, high, advice")
_VERIFIED: dict[Path, tuple[tuple[int, int], ...]] = {}
"""Size and time of the files of stores that were found whole: a command opens one several times."""


class Study:
    """A study on disk, read-only; safe to open while it is being run.

    Attributes
    ----------
    directory : Path
    declaration : Declaration
        As last run.
    """

    def __init__(self, directory: Path, declaration: Declaration) -> None:
        self.directory = directory
        self.declaration = declaration

    @classmethod
    def load(cls, directory: "str | Path | Study") -> "Study":
        """Open a study; one that is open is returned.

        Raises
        ------
        ToposcopeError
            If the directory holds none.
        """
        if isinstance(directory, Study):
            return directory
        if not isinstance(directory, str | Path):
            raise ToposcopeError(f"study: expected a Study or its folder, got {type(directory).__name__}")
        directory = Path(directory)
        for name in ("study.toml", "study.db"):
            if not (directory / name).is_file():
                raise ToposcopeError(
                    f"{directory}: no study here ({name} is missing); make one with: toposcope study run"
                )
        return cls(directory, load_declaration(directory / "study.toml"))

    if not TYPE_CHECKING:  # to a type checker any name would then exist

        def __getattr__(self, name: str) -> Any:
            raise unknown_name("a Study", name, dir(Study))

    def __repr__(self) -> str:
        return f"Study({self.declaration.name!r}, {len(self.run_names())} runs, in {str(self.directory)!r})"

    def frame(self) -> pl.DataFrame:
        """Return the features of the declared runs: by the declared probes, and published ones, in a fixed order.

        With thousands of checkpoints it has millions of rows, about 130 bytes each; `frames` has them in parts.

        Returns
        -------
        polars.DataFrame
            Columns ``run, step, layer, role, probe, options, statistic, kind, value, flag``. ``layer`` is ``network``
            for values of the whole checkpoint and ``pooled`` for a cloud of all layers; ``options`` is JSON.
        """
        return pl.concat(self.frames())

    def frames(self, progress: Progress = silent) -> Iterator[pl.DataFrame]:
        """Yield the rows of `frame` in its order, at least one frame of at most `MAX_MEASUREMENTS` measurements."""
        # The text columns of a measurement are read once, not once for each of its statistics.
        measured = self._query(
            "SELECT id, m.run, m.step, m.layer, m.role, m.probe, m.options, flag "
            "FROM measurements m JOIN runs r ON r.run = m.run "
            "LEFT JOIN layers l ON (l.run, l.step, l.layer) = (m.run, m.step, m.layer) "
            "ORDER BY r.position, m.step, l.position IS NULL, l.position, m.layer, m.probe, m.options",
            _categorical("measurement, run, step, layer, role, probe, options, flag"),
        )
        measured = measured.filter(pl.col("run").is_in(self.run_names()))
        labels = self.labels().with_columns(pl.all().cast(pl.Categorical()))
        measured = measured.join(labels, on=["probe", "options"], how="semi", maintain_order="left")
        features = self._query(
            "SELECT measurement, statistic, value FROM features ORDER BY measurement, statistic",
            _categorical("measurement, statistic, value"),
        )
        kinds = self._query("SELECT probe, statistic, kind FROM kinds", _schema("probe, statistic, kind"))
        for start in range(0, max(len(measured), 1), MAX_MEASUREMENTS):
            progress("load", start, len(measured) or 1)
            part = measured.slice(start, MAX_MEASUREMENTS)
            rows = part.join(features, on="measurement", maintain_order="left_right")
            rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
            yield rows.join(kinds, on=["probe", "statistic"], how="left", maintain_order="left").select(*FRAME_SCHEMA)
        progress("load", len(measured), len(measured) or 1)

    def labels(self) -> pl.DataFrame:
        """Return ``probe, options, label`` of the declared probes; a label is the form the command line takes.

        Features published with a run have the probe and label ``published``.
        """
        probes = self.declaration.resolved_probes()
        rows = [(probe.name(), probe.options(), probe.label()) for probe in probes]
        if any(series.features for series in self.declaration.series):
            rows.append((PUBLISHED, "{}", PUBLISHED))
        return pl.DataFrame(rows, schema=_schema("probe, options, label"), orient="row")

    def runs(self) -> pl.DataFrame:
        """Return the runs: ``run, kind, n_parameters, status, last_step, n_checkpoints``, in the order declared."""
        frame = self._query(
            "SELECT run, kind, n_parameters, status, last_step, "
            "(SELECT COUNT(*) FROM checkpoints c WHERE c.run = r.run) FROM runs r ORDER BY position",
            _schema("run, kind, n_parameters, status, last_step, n_checkpoints"),
        )
        return frame.filter(pl.col("run").is_in(self.run_names()))

    def population(self) -> pl.DataFrame:
        """Return what the runs that are trained here were declared with, in the order declared.

        Returns
        -------
        polars.DataFrame
            Columns ``run``, ``size`` (``hidden-8-layers-2`` for one without a name), ``n_parameters``, ``corpus`` (its
            source), and the fields of `TrainingOptions` that are numbers or names.
        """
        names = {size: name for name, size in SIZES.items()}
        rows = [
            {
                "run": run.name,
                "size": names.get(run.size) or f"hidden-{run.size.hidden}-layers-{run.size.layers}",
                "n_parameters": run.size.n_parameters,
                "corpus": run.corpus.source,
                **{name: v for name, v in msgspec.structs.asdict(run.training).items() if not isinstance(v, tuple)},
            }
            for run in self.declaration.resolved_runs()
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def targets(self) -> pl.DataFrame:
        """Return the further losses and accuracies of the training logs: ``run, step, target, unit, value``.

        Among them is, for a run trained here, the validation loss on each corpus that other runs are trained on.
        """
        return self._of_runs("log_targets", _schema("run, step, target, unit, value"))

    def progress(self) -> pl.DataFrame:
        """Return `runs` with how many checkpoints carry a measurement, and how many errors there are, by run."""
        done = self._query(
            "SELECT DISTINCT run, step, probe, options FROM measurements", _schema("run, step, probe, options")
        )
        declared = done.filter(pl.col("probe") != PUBLISHED).join(self.labels(), on=["probe", "options"], how="semi")
        measured = declared.group_by("run").agg(measured=pl.col("step").n_unique())
        failed = self.errors().group_by("run").agg(errors=pl.len())
        return (
            self.runs()
            .join(measured, on="run", how="left", maintain_order="left")
            .join(failed, on="run", how="left", maintain_order="left")
            .with_columns(pl.col("measured", "errors").fill_null(0))
        )

    def log(self) -> pl.DataFrame:
        """Return the training logs, NaN where that was logged, null where nothing was; see ``schema.sql`` for units."""
        frame = self._of_runs("log", {"run": pl.String, "step": pl.Int64, **dict.fromkeys(COLUMNS, pl.Float64)})
        logs = frame.partition_by("run", maintain_order=True)
        with self._connected() as connection:
            logs = [with_nan(log, nan_steps(connection, log["run"][0])) for log in logs]
        return pl.concat([frame.clear(), *logs])

    def checkpoints(self) -> pl.DataFrame:
        """Return the readable checkpoints: ``run, step, path``."""
        return self._of_runs("checkpoints", _schema("run, step, path"))

    def errors(self) -> pl.DataFrame:
        """Return the errors of the last run of the study; step -1 stands for a whole run."""
        return self._query(
            "SELECT run, step, layer, probe, message FROM errors ORDER BY run, step, layer, probe, options",
            _schema("run, step, layer, probe, message"),
        )

    def findings(self) -> pl.DataFrame:
        """Return the doctor's findings of the last run of the study; an empty layer stands for the whole checkpoint."""
        rows = self._of_runs("findings", _schema("run, check, severity, steps, layer, message"), "position")
        return rows.with_columns(pl.col("steps").str.json_decode(pl.List(pl.Int64)))

    def alerts(self) -> pl.DataFrame:
        """Return what a monitor noticed while runs trained, in that order.

        Returns
        -------
        polars.DataFrame
            Columns ``run, check, step, since, place, message, evidence``; ``evidence`` is JSON.
        """
        return self._of_runs("alerts", ALERT_SCHEMA, "seq")

    def times(self) -> pl.DataFrame:
        """Return when monitored runs had got to some of their steps: ``run, step, seconds`` since 1970."""
        return self._of_runs("times", TIME_SCHEMA)

    def forecasts(self) -> pl.DataFrame:
        """Return the forecasts of the final loss that a monitor made while runs trained, in that order.

        Returns
        -------
        polars.DataFrame
            Columns ``run, step, last_step, loss, low, high, advice``; nats per token, the interval is of 90%.
        """
        return self._of_runs("forecasts", FORECAST_SCHEMA)

    def _of_runs(self, table: str, schema: Schema, order: str = "step") -> pl.DataFrame:
        """Return the rows of the declared runs in a table, in the order of the runs."""
        listed = ", ".join(f"t.{'check_name' if name == 'check' else name}" for name in schema)
        query = f"SELECT {listed} FROM {table} t JOIN runs r ON r.run = t.run ORDER BY r.position, t.{order}"
        return self._query(query, schema).filter(pl.col("run").is_in(self.run_names()))

    def examined(self) -> list[str]:
        """Return the runs whose checkpoints the doctor examined when the study was last run."""
        return [run for run in self.run_names() if int(self.meta(f"examined {run}") or 0)]

    def notes(self) -> list[str]:
        """Return what the study passed over without an error, one sentence each."""
        series = [name for name, declared in self.declaration.named_series().items() if declared.path]
        dropped = self.meta("dropped")
        notes = [f"study.db was damaged: {dropped}: deleted and made again"] if dropped else []
        notes += [f"{name}: left out: {reason}" for name in series if (reason := self.meta(f"unreachable {name}"))]
        notes += [f"{name}: no checkpoint at step {steps}" for name in series if (steps := self.meta(f"absent {name}"))]
        for kind in ("chosen", "remarks"):
            named = self.declaration.named_series()
            notes += [f"{name}: {remark}" for name in named for remark in self.meta(f"{kind} {name}").splitlines()]
        notes += [f"{run}: {note}" for run in self.run_names() for note in self.meta(f"changes {run}").splitlines()]
        notes += self._flagged()
        reached = ", ".join(name for name in series if not self.meta(f"unreachable {name}"))
        for probe in self.declaration.resolved_probes() if reached else []:
            are_trained = bool(self.declaration.resolved_runs())
            lacking = [n.name for n in needs_of(probe) if n.trained_here or (n.of_training and are_trained)]
            if lacking:
                notes.append(
                    f"{probe.label()} does not apply to {reached}: only runs trained here have {' and '.join(lacking)}"
                )
        return notes

    def _flagged(self) -> Iterator[str]:
        """Yield what is flagged as doubtful or less than asked for: of each probe how often, and the first time."""
        declared, runs = {(p.name(), p.options()) for p in self.declaration.resolved_probes()}, set(self.run_names())
        rows = self._read("SELECT DISTINCT probe, options, run, step, flag FROM measurements WHERE flag <> ''")
        found: dict[str, dict[tuple[str, int], str]] = {}  # the flag by probe, then by checkpoint
        for probe, options, run, step, flag in sorted(rows):
            if run in runs and (probe, options) in declared and DOUBTS.search(flag):
                found.setdefault(probe, {}).setdefault((run, step), flag)
        for probe, flags in found.items():
            (run, step), flag = next(iter(flags.items()))
            total = self._read(
                "SELECT COUNT(*) FROM (SELECT DISTINCT run, step FROM measurements WHERE probe = ?)", (probe,)
            )
            yield f"{probe}: flagged at {len(flags)} of {total[0][0]} checkpoints; {run} step {step}: {flag}"

    def coverage(self) -> str:
        """Return which share of the parameters was measured, of the run where it is least; empty if none was read."""
        stored = {name: text for name in self.run_names() if (text := self.meta(f"coverage {name}"))}
        known = {name: msgspec.json.decode(text, type=Coverage) for name, text in stored.items()}
        if not known:
            return ""
        least = min(known, key=lambda name: known[name].share)
        of_which = f"{least}, the least of {len(known)} runs: " if len(known) > 1 else ""
        return of_which + known[least].sentence()

    def declarations(self) -> dict[str, Declaration]:
        """Return the declaration by the name of the study."""
        return {self.declaration.name: self.declaration}

    def meta(self, key: str) -> str:
        """Return one fact about the study, or an empty text."""
        rows = self._read("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else ""

    def digest(self) -> str:
        """Return a SHA-256 of all that a report is written of: the version, the declaration, and the stored rows."""
        rows = self._read("SELECT * FROM checksums WHERE checksum <> 0 ORDER BY kind, place")
        return hashlib.sha256(f"{__version__}\n{self.declaration.to_toml()}\n{rows!r}".encode()).hexdigest()

    def diagrams(self, run: str, step: int, probe: str = "rips") -> dict[str, dict[str, Diagram]]:
        """Return the diagrams of a declared probe: layer -> name (``H0``, ``H1``, ``NP``) -> diagram.

        Raises
        ------
        ToposcopeError
            If there are none.
        """
        return read_diagrams(self._findings(run, step, probe))

    def states(self, run: str, step: int, probe: str) -> dict[str, NDArray[np.float32]]:
        """Return the points that a declared probe stored: of hidden states, or losses on a plane; by pseudo-layer.

        Raises
        ------
        ToposcopeError
            If there are none.
        """
        return read_states(self._findings(run, step, probe))

    def has_diagrams(self, run: str, step: int, probe: str) -> bool:
        """Return whether diagrams or points of a checkpoint by a declared probe are stored."""
        file = self._findings_file(run, step, probe)
        with self._connected() as connection:
            is_current = self._has_checkpoint(connection, run, step)
            return is_current and stored_diagrams(connection, self._database, file) is not None

    def _findings(self, run: str, step: int, probe: str) -> Source:
        """Return where diagrams of a checkpoint are stored, unless the checkpoint is gone."""
        file = self._findings_file(run, step, probe)
        with self._connected() as connection:
            if not self._has_checkpoint(connection, run, step):
                raise ToposcopeError(f"{self.directory}: {run} has no checkpoint at step {step} any more")
            # A file that is missing is an error of reading it.
            return stored_diagrams(connection, self._database, file) or self.directory / file

    def _has_checkpoint(self, connection: sqlite3.Connection, run: str, step: int) -> bool:
        query = "SELECT 1 FROM checkpoints c JOIN runs r ON r.run = c.run WHERE (c.run, c.step) = (?, ?)"
        return run in self.run_names() and connection.execute(query, (run, int(step))).fetchone() is not None

    def _findings_file(self, run: str, step: int, probe: str) -> str:
        probes = {declared.label(): declared for declared in self.declaration.resolved_probes()}
        if probe not in probes:
            raise ToposcopeError(f"{self.directory}: no probe {probe!r} in this study; {choices(probe, probes)}")
        return diagram_file(run, step, probes[probe])

    def run_names(self) -> list[str]:
        """Return the names of the declared runs, in that order."""
        return [run.name for run in self.declaration.resolved_runs()] + list(self.declaration.named_series())

    def _query(self, query: str, schema: Schema) -> pl.DataFrame:
        parts = [pl.DataFrame(schema=schema)]
        try:
            with self._connected() as connection:
                cursor = connection.execute(query)
                while rows := cursor.fetchmany(ROWS_READ):
                    parts.append(pl.DataFrame(rows, schema=schema, orient="row"))
            return pl.concat(parts, rechunk=True)
        except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
            raise self._damaged("a value of another type than it was written with") from error

    @property
    def _database(self) -> Path:
        return self.directory / "study.db"

    def _read(self, query: str, values: tuple[str | int, ...] = ()) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Connect to the store, which is verified; errors become one line."""
        try:
            with closing(sqlite3.connect(self._database, timeout=30, isolation_level=None)) as connection:
                connection.execute("BEGIN")  # what is verified is what is read
                self._verify(connection)
                yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            other = "read it with that version, or " if "schema version" in str(error) else ""
            raise ToposcopeError(f"{self._database}: {error}; {other}delete it and run the study again") from error

    def _verify(self, connection: sqlite3.Connection) -> None:
        """Refuse a store that is not as it was written; looked at again only when its files have changed."""
        files = [path for path in (self._database, self._database.with_name("study.db-wal")) if path.exists()]
        state = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in files)
        if state == _VERIFIED.get(self._database):
            return
        refuse_views(connection)
        if not damage.is_whole(connection):
            raise sqlite3.DatabaseError("damaged: its pages do not agree with each other")
        refuse_schema(connection)
        if not has_table(connection, "checksums"):
            raise self._damaged("no checksums")
        found = next(damage.damaged(connection), None)
        if found is not None:
            raise self._damaged(str(found))
        _VERIFIED[self._database] = state

    def _damaged(self, what: str) -> ToposcopeError:
        return ToposcopeError(
            f"{self._database}: damaged since it was written ({what}); run the study again: what "
            "is damaged is measured again, the rest stays"
        )


def with_flat_steps(findings: pl.DataFrame) -> pl.DataFrame:
    """Return findings with their steps as text, for tables that hold no lists."""
    return findings.with_columns(pl.col("steps").cast(pl.List(pl.String)).list.join(" "))
