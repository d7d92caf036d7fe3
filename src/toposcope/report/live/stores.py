"""A study as the live page follows it: rows that were written since a reader looked, what can be drawn, and health."""

import math
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from toposcope.analysis.health.check import DIVERGED, EARLY, FAILED, FINISHED, UNJUDGED, Health
from toposcope.databases import refuse_schema
from toposcope.errors import ToposcopeError
from toposcope.report.live import cool_down
from toposcope.report.live.assets import Assets
from toposcope.report.live.status import RunRow, Status, ended_at, in_sweep, status_of
from toposcope.report.naming import LOG
from toposcope.wording import sentence

if TYPE_CHECKING:
    from toposcope.logs import Run

MAX_NEW = 5_000  # numbers of a table in one message; what is left follows in the next
MAX_VALUE = 1e300  # largest absolute value that is drawn
LOG_COLUMNS = ("loss", "validation_loss", "learning_rate", "grad_norm", "weight_norm")
WHOLE = ("network", "pooled")  # in place of a layer
BLOCKS = "activations"  # the probe that measures blocks instead of layers
N_EXAMPLES = 8  # steps of a run that are searched for measured quantities at first; every later step is searched
MAX_SHARE = 0.1  # of the time: a study that takes a second to judge is judged every ten seconds at most
SILENT_SECONDS = 60.0  # after which it is said anew how long a run has been silent
ENDED = {"complete": FINISHED, "diverged": DIVERGED, "failed": FAILED, "unreachable": FAILED}

_DRAWN = f"BETWEEN -{MAX_VALUE} AND {MAX_VALUE}"
_LOGGED = " UNION ALL ".join(
    f"SELECT '{LOG}', '', '{name}', run, '', step, {name} FROM log "
    f"WHERE seq > :after AND seq <= :until AND {name} {_DRAWN}"
    for name in (*LOG_COLUMNS, "tokens")
)
_MEASURED = (
    "SELECT m.probe, m.options, f.statistic, m.run, m.layer, m.step, f.value FROM measurements m "
    "JOIN features f ON f.measurement = m.id WHERE m.id > :after AND m.id <= :until "
    f"AND f.value {_DRAWN} AND m.layer "
)
_READS = (
    ("log", "seq", _LOGGED),
    (
        *("log_targets", "seq"),
        f"SELECT '{LOG}', '', target, run, '', step, value FROM log_targets "
        f"WHERE seq > :after AND seq <= :until AND value {_DRAWN}",
    ),
    ("times", "seq", "SELECT 'time', '', '', run, '', step, seconds FROM times WHERE seq > :after AND seq <= :until"),
    ("measurements", "id", f"{_MEASURED} IN {WHOLE} AND f.statistic NOT LIKE '%@%'"),
    (
        *("measurements", "id"),
        f"{_MEASURED} NOT IN {WHOLE} AND (m.run, m.probe, m.options, f.statistic) = (:run, :probe, :options, :name)",
    ),
)
"""Table, its numbers, and a query: probe, options and statistic, run, layer, step and value. The last one is of the
quantity of layers that a page shows."""

Numbers = list[int]
"""What a page has of a study: a number that is another when what it has does not count any more, and the last number
that it got of each of `_READS`."""


class Quantity(NamedTuple):
    """A measured quantity; or a logged one, of the probe ``log``."""

    probe: str
    options: str
    statistic: str


class Line(NamedTuple):
    """New points of one quantity."""

    key: str  # as the page names the quantity
    run: str
    layer: str  # or one of `WHOLE`; empty of what was logged
    steps: list[int]
    values: list[float]


@dataclass
class New:
    """What a page does not have."""

    lines: list[Line]
    position: Numbers
    is_anew: bool = False  # whether what it has does not count any more
    has_more: bool = False


@dataclass
class Catalogue:
    """What was found to be logged and measured, up to a position."""

    position: Sequence[int] = ()
    columns: dict[str, set[str]] = field(default_factory=dict)  # of the log, by run
    whole: dict[str, dict[str, Quantity]] = field(default_factory=dict)  # by run and key
    layers: dict[str, dict[str, Quantity]] = field(default_factory=dict)


class StoreSource:
    """A study's database, opened read-only and kept open; thread-safe."""

    def __init__(self, directory: Path, assets: Assets, name: str) -> None:
        self.directory, self.name = directory, name
        self.path = directory / "study.db"
        self._assets = assets
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version = -1
        self._catalogue = Catalogue()
        self._judge = Judge(directory)
        self._stamp, self._was_due = 0, False
        self.n_changes = 0  # that were noticed

    def has_changed(self) -> bool:
        """Return whether anything is new since the last call: rows, the stored cool-down, or the health of a run."""
        with self._lock:
            has_rows, stamp = self._has_rows(), cool_down.stamp(self.directory)
            is_due = self._judge.is_due()
            is_new = has_rows or stamp != self._stamp or (is_due and not self._was_due)
            self._stamp, self._was_due = stamp, is_due
            self.n_changes += is_new
            return is_new

    def _has_rows(self) -> bool:
        try:
            status = self.path.stat()
            if self._connection is None or self._identity != (status.st_dev, status.st_ino):
                self._open((status.st_dev, status.st_ino))
            assert self._connection is not None
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except (OSError, sqlite3.Error):
            was_open = self._connection is not None
            self.close()
            return was_open
        has_changed, self._version = bool(version != self._version), version
        self._judge.is_stale |= has_changed
        return has_changed

    def _open(self, identity: tuple[int, int]) -> None:
        self.close()
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=5, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        self._connection.execute("PRAGMA cache_size = -8000")
        self._identity = identity

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._version = None, -1

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, so that all reads see the same state."""
        with self._lock:
            if self._connection is None:
                self._has_rows()
            if self._connection is None:
                raise sqlite3.OperationalError("the study does not exist yet")
            self._connection.execute("BEGIN")
            try:
                refuse_schema(self._connection)
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    def new(self, c: sqlite3.Connection, known: Sequence[int], run: str, key: str) -> New:
        """Return what a page does not have, which shows a quantity of a run's layers."""
        position = [_identity(c)]
        is_anew = len(known) != 1 + len(_READS) or known[0] != position[0]
        shown = self._catalogue.layers.get(run, {}).get(key, Quantity("", "", ""))
        chosen = {"run": run, "probe": shown.probe, "options": shown.options, "name": shown.statistic}
        points: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        has_more = False
        for place, (table, number, query) in enumerate(_READS, 1):
            after, last = 0 if is_anew else known[place], _last(c, table, number)
            until = min(last, after + MAX_NEW)
            for *of, step, value in c.execute(query, {"after": after, "until": until, **chosen}):
                steps, values = points.setdefault(tuple(of), ([], []))
                steps.append(step)
                values.append(float(f"{value:.6g}") if table != "times" else value)
            position.append(until)
            has_more |= until < last
        lines = [
            Line(self._key(Quantity(probe, options, name)), run, layer, *rows)
            for (probe, options, name, run, layer), rows in points.items()
        ]
        return New(lines, position, is_anew, has_more)

    def _key(self, quantity: Quantity) -> str:
        return f"{self._assets.label(quantity.probe, quantity.options)} {quantity.statistic}".strip()

    def catalogue(self, c: sqlite3.Connection) -> Catalogue:
        """Return what is logged and measured; what was written since the last call is looked at."""
        identity, known = _identity(c), self._catalogue.position
        if not known or known[0] != identity:
            self._catalogue, known = Catalogue(), (identity, 0, 0, 0)
        found = self._catalogue
        counts = ", ".join(f"COUNT({name})" for name in LOG_COLUMNS)
        for run, *values in c.execute(f"SELECT run, {counts} FROM log WHERE seq > ? GROUP BY run", (known[1],)):
            found.columns.setdefault(run, set()).update(name for name, n in zip(LOG_COLUMNS, values, strict=True) if n)
        for run, name in c.execute("SELECT DISTINCT run, target FROM log_targets WHERE seq > ?", (known[2],)):
            found.columns.setdefault(run, set()).add(name)
        steps: dict[str, list[int]] = {}
        for run, step in c.execute("SELECT DISTINCT run, step FROM measurements WHERE id > ? ORDER BY 2", (known[3],)):
            steps.setdefault(run, []).append(step)
        for run, new in steps.items():
            for step in examples(new) if not known[3] else new:
                for is_whole, *of in c.execute(
                    f"SELECT DISTINCT m.layer IN {WHOLE}, m.probe, m.options, f.statistic FROM measurements m "
                    "JOIN features f ON f.measurement = m.id "
                    "WHERE m.run = ? AND m.step = ? AND f.statistic NOT LIKE '%@%'",
                    (run, step),
                ):
                    quantity = Quantity(*of)
                    (found.whole if is_whole else found.layers).setdefault(run, {})[self._key(quantity)] = quantity
        last = (_last(c, *_READS[k][:2]) for k in (0, 1, 3))
        found.position = (identity, *last)
        return found

    def statuses(self, c: sqlite3.Connection, rows: Sequence[RunRow], names: Mapping[str, str]) -> list[Status]:
        """Return the status of every run; names are those on the page."""
        self._judge.look()
        written = self._written()
        judge = self._judge
        return [status_of(c, row, names[row.run], written, judge.health(c, row), judge.ended(row.run)) for row in rows]

    def in_sweep(self, last_step: int | None) -> "list[tuple[Run, bool]]":
        """Return every run that logged, and whether it goes on."""
        with self._lock:
            return self._judge.in_sweep(last_step)

    def with_cool_down(self, c: sqlite3.Connection, run: str, status: Status) -> Status:
        """Return the status of the only run with what is known of a cool-down from now on."""
        return replace(
            status,
            cool_down=cool_down.measured_words(self.directory, status.step),
            to_measure=cool_down.how_to_measure(c, run, self.directory.resolve()),
        )

    def _written(self) -> float:
        """Return the time of the last write, in seconds since 1970; 0 if unknown."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return max((path.stat().st_mtime for path in files if path.exists()), default=0.0)


def _last(c: sqlite3.Connection, table: str, number: str) -> int:
    return int(c.execute(f"SELECT COALESCE(MAX({number}), 0) FROM {table}").fetchone()[0])


def _identity(c: sqlite3.Connection) -> int:
    """Return a number that is another where rows were deleted, or the store was made anew."""
    first = "SELECT * FROM (SELECT run, step, {} FROM {} ORDER BY {} LIMIT 1)"
    facts = c.execute("PRAGMA user_version").fetchall()
    facts += c.execute(first.format("loss", "log", "seq")).fetchall()
    facts += c.execute(first.format("key", "measurements", "id")).fetchall()
    return zlib.crc32(repr(facts).encode())


def examples(steps: Sequence[int]) -> list[int]:
    """Return a few of the steps, including the first and the last."""
    if len(steps) <= N_EXAMPLES:
        return list(steps)
    return [steps[i * (len(steps) - 1) // (N_EXAMPLES - 1)] for i in range(N_EXAMPLES)]


def runs(c: sqlite3.Connection) -> list[RunRow]:
    """Return the runs in their order."""
    query = "SELECT run, kind, status, last_step FROM runs ORDER BY position, run"
    return [RunRow(*row) for row in c.execute(query)]


def layer_names(c: sqlite3.Connection, run: str) -> list[str]:
    """Return the layers of a run in the order of its last checkpoint, then the blocks measured on a fixed batch."""
    last = c.execute("SELECT MAX(step) FROM layers WHERE run = ?", (run,)).fetchone()[0]
    rows = c.execute("SELECT layer FROM layers WHERE run = ? AND step = ? ORDER BY position", (run, last)).fetchall()
    query = (
        "SELECT DISTINCT layer FROM measurements WHERE run = :run AND probe = :probe AND layer <> 'network' AND "
        "step IN (SELECT * FROM (SELECT step FROM checkpoints WHERE run = :run ORDER BY step LIMIT :n) UNION "
        "SELECT * FROM (SELECT step FROM checkpoints WHERE run = :run ORDER BY step DESC LIMIT :n)) ORDER BY layer"
    )
    rows += c.execute(query, {"run": run, "probe": BLOCKS, "n": N_EXAMPLES}).fetchall()
    return [layer for (layer,) in rows]


class Judge:
    """Judges the runs of a study when it has changed, as every command does, and when one of them falls silent."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runs: dict[str, Run] = {}
        self._health: dict[str, Health] = {}
        self._refused = ""
        self._next, self._wake = 0.0, math.inf
        self.is_stale = True

    def is_due(self) -> bool:
        """Return whether there is something to judge."""
        return time.time() > self._wake or (self.is_stale and time.monotonic() >= self._next)

    def look(self) -> None:
        """Judge all runs if that is due."""
        if not self.is_due():
            return
        from toposcope.analysis.health import health  # with NumPy and Polars, after the server has started
        from toposcope.analysis.health.monitored import silent_at
        from toposcope.logs import read_logs

        began, now = time.monotonic(), time.time()
        if self.is_stale and began >= self._next:
            self.is_stale, self._refused, self._runs = False, "", {}
            try:
                self._runs = {run.name: run for run in read_logs(self._directory).logs}
            except (ToposcopeError, OSError, sqlite3.Error) as error:  # nothing was logged yet, or it cannot be judged
                self._refused = str(error).removeprefix(f"{self._directory}: ")
        self._health = {name: health(run, now) for name, run in self._runs.items()}
        silent = [silent_at(run) for run in self._runs.values()]
        self._wake = min((at if at > now else now + SILENT_SECONDS for at in silent), default=math.inf)
        self._next = time.monotonic() + (time.monotonic() - began) / MAX_SHARE

    def in_sweep(self, last_step: int | None) -> "list[tuple[Run, bool]]":
        """Return every run as it was last read, and whether it goes on."""
        self.look()
        return [in_sweep(run, self._health[name], run.watched, last_step) for name, run in self._runs.items()]

    def ended(self, name: str) -> float | None:
        """Return the final training loss of a run that finished."""
        return ended_at(self._runs.get(name), self._health.get(name, Health("")))

    def health(self, c: sqlite3.Connection, row: RunRow) -> Health:
        """Return the health of a run; of one without a row, what its writer says."""
        if (found := self._health.get(row.run)) is not None:
            return found
        has_rows = c.execute("SELECT 1 FROM log WHERE run = ? LIMIT 1", (row.run,)).fetchone() is not None
        if has_rows and self._refused:
            return Health(UNJUDGED, sentence(self._refused))
        return Health(ENDED.get(row.status, UNJUDGED if has_rows else EARLY))
