"""Reads a study's database while it grows, a few rows at a time."""

import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from toposcope.databases import has_table, refuse_schema
from toposcope.report.tuning import MAX_LIVE_ROWS, MIN_RUN_ROWS
from toposcope.study.checksums import log_after


class Row(NamedTuple):
    """A quantity at one step, or over several steps, the last of which is `step`."""

    step: int
    value: float
    low: float
    high: float
    n: int = 1


def rows_a_run(n_runs: int) -> int:
    """Return the number of rows to draw for each run."""
    return max(MIN_RUN_ROWS, MAX_LIVE_ROWS // max(2, n_runs))


def single(values: Iterable[tuple[int, float | None]]) -> list[Row]:
    """Return a row for each step with a finite value."""
    return [Row(step, v, v, v) for step, v in values if v is not None and math.isfinite(v)]


def thinned(rows: Sequence[Row], at_most: int) -> list[Row]:
    """Merge neighbouring rows until at most `at_most` remain, keeping their extremes."""
    width = -(-len(rows) // at_most)
    if width <= 1:
        return list(rows)
    return [_merged(rows[i : i + width]) for i in range(0, len(rows), width)]


def columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return rows as columns for the page, with the range only if a row stands for several steps."""
    names = ("value", "low", "high") if any(row.n > 1 for row in rows) else ("value",)
    values = {name: [float(f"{getattr(row, name):.6g}") for row in rows] for name in names}
    return {"step": [row.step for row in rows], **values}


def _merged(rows: Sequence[Row]) -> Row:
    n = sum(row.n for row in rows)
    mean = sum(row.value * (row.n / n) for row in rows)
    return Row(rows[-1].step, mean, min(row.low for row in rows), max(row.high for row in rows), n)


TAIL = 8  # rows at the end of a log that are read again, since values may be added to them
MAX_VALUE = 1e300  # largest absolute value that is drawn
LOG_COLUMNS = ("loss", "validation_loss", "learning_rate", "grad_norm", "weight_norm")
AXES = {"tokens": ("log", "tokens"), "time": ("times", "seconds")}
"""What the x axis of lines may show besides the step: the table and the column."""
MAX_PLACES = 64  # places of a run on such an axis; the page interpolates between them
N_EXAMPLES = 8  # steps of a run that are searched for measured quantities at first; every later step is searched
MAX_ALERTS = 50

_STEPS = (
    "WITH RECURSIVE s(step) AS (SELECT MIN(step) FROM measurements WHERE run = :run AND step > :after UNION ALL "
    "SELECT (SELECT MIN(step) FROM measurements WHERE run = :run AND step > s.step) FROM s WHERE s.step IS NOT NULL) "
)
"""The measured steps of a run, each found by one lookup in the index."""


@dataclass(frozen=True)
class Quantity:
    """A measured or logged quantity; if logged, ``probe`` is ``log`` and ``statistic`` is the column."""

    probe: str
    options: str
    statistic: str


@dataclass(frozen=True)
class RunRow:
    """A row of the table ``runs``."""

    run: str
    kind: str
    status: str
    last_step: int | None
    n_parameters: int | None


class Database:
    """A study's database, opened read-only and kept open; thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version = -1
        self.n_changes = 0  # that were noticed

    def has_changed(self) -> bool:
        """Return whether anything was written since the last call; this reads only the file's header."""
        with self._lock:
            try:
                status = self.path.stat()
                if self._connection is None or self._identity != (status.st_dev, status.st_ino):
                    self._open((status.st_dev, status.st_ino))
                (version,) = self._connected().execute("PRAGMA data_version").fetchone()
            except (OSError, sqlite3.Error):
                was_open = self._connection is not None
                self.close()
                self.n_changes += was_open
                return was_open
            changed = version != self._version
            self._version = version
            self.n_changes += changed
            return bool(changed)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, so that all reads see the same state."""
        with self._lock:
            if self._connection is None:
                self.has_changed()
            connection = self._connected()
            connection.execute("BEGIN")
            try:
                refuse_schema(connection)
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def written(self) -> float:
        """Return the time of the last write, in seconds since 1970; 0 if unknown."""
        times = [
            path.stat().st_mtime for path in (self.path, self.path.with_name(f"{self.path.name}-wal")) if path.exists()
        ]
        return max(times, default=0.0)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._version = None, -1

    def _open(self, identity: tuple[int, int]) -> None:
        self.close()
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=5, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        self._connection.execute("PRAGMA cache_size = -8000")
        self._identity = identity

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError(f"{self.path}: the study does not exist yet")
        return self._connection


def runs(c: sqlite3.Connection) -> list[RunRow]:
    """Return the runs in their order."""
    query = "SELECT run, kind, status, last_step, n_parameters FROM runs ORDER BY position, run"
    return [RunRow(*row) for row in c.execute(query)]


def meta(c: sqlite3.Connection, key: str) -> dict[str, Any]:
    """Return a JSON object from the table ``meta``; empty if there is none, or it is not an object."""
    row = c.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    try:
        value = json.loads(row[0]) if row else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def log_position(c: sqlite3.Connection, run: str) -> tuple[int, int]:
    """Return a step near the end of a run's log, and the checksum of the log up to it."""
    rows = c.execute("SELECT step FROM log WHERE run = ? ORDER BY step DESC LIMIT 1 OFFSET ?", (run, TAIL)).fetchone()
    step = rows[0] if rows else -1
    return step, log_after(c, run, step)[2]


def log_is_continued(c: sqlite3.Connection, run: str, position: Sequence[int]) -> bool:
    """Return whether the log up to a position is unchanged since the position was read."""
    step, before = position
    return log_after(c, run, step)[2] == before


def logged_columns(c: sqlite3.Connection, run: str) -> list[str]:
    """Return the columns of a run's log that have a value, and its further targets."""
    columns = [
        name
        for name in LOG_COLUMNS
        if c.execute(f"SELECT 1 FROM log WHERE run = ? AND {name} IS NOT NULL LIMIT 1", (run,)).fetchone()
    ]
    # The first and the last hundred rows suffice, since a target is logged repeatedly.
    ends = " UNION ".join(
        f"SELECT target FROM (SELECT target FROM log_targets WHERE run = :run ORDER BY step {order} LIMIT 100)"
        for order in ("ASC", "DESC")
    )
    return columns + sorted(name for (name,) in c.execute(ends, {"run": run}))


def logged(c: sqlite3.Connection, run: str, column: str, after: int, until: int, at_most: int) -> list[Row]:
    """Return a column of a run's log after a step, thinned by the database itself."""
    table, value, also = "log", column, ""
    if column not in LOG_COLUMNS:
        table, value, also = "log_targets", "value", "AND target = :target "
    names = {"run": run, "target": column, "after": after, "until": until}
    where = f"FROM {table} WHERE run = :run AND step > :after AND step <= :until {also}"
    where += f"AND {value} BETWEEN -{MAX_VALUE} AND {MAX_VALUE}"
    n, first, last = c.execute(f"SELECT COUNT(*), MIN(step), MAX(step) {where}", names).fetchone()
    if n <= at_most:
        return single(c.execute(f"SELECT step, {value} {where} ORDER BY step", names))
    names |= {"first": first, "width": -(-(last - first + 1) // at_most)}
    merged = f"MAX(step), AVG({value}), MIN({value}), MAX({value}), COUNT(*)"
    query = f"SELECT {merged} {where} GROUP BY (step - :first) / :width"
    return [Row(*row) for row in c.execute(query, names)]


def along(c: sqlite3.Connection, run: str, axis: str, after: int) -> dict[str, list[float]]:
    """Return places of a run on another axis than the step, after a step, as columns."""
    table, value = AXES[axis]
    if not has_table(c, table):
        return {"step": [], "value": []}
    where = f"FROM {table} WHERE run = :run AND step > :after AND {value} BETWEEN -{MAX_VALUE} AND {MAX_VALUE}"
    names = {"run": run, "after": after}
    first, last = c.execute(f"SELECT MIN(step), MAX(step) {where}", names).fetchone()
    names |= {"first": first, "width": 0 if first is None else -(-(last - first + 1) // MAX_PLACES)}
    # SQLite takes the value from the row of the last step.
    rows = c.execute(f"SELECT MAX(step), {value} {where} GROUP BY (step - :first) / :width", names).fetchall()
    return {"step": [step for step, _ in rows], "value": [place for _, place in rows]}


def measured_steps(c: sqlite3.Connection, run: str, after: int = -1) -> list[int]:
    """Return the measured steps of a run."""
    return [s for (s,) in c.execute(_STEPS + "SELECT step FROM s WHERE step IS NOT NULL", {"run": run, "after": after})]


def n_measured(c: sqlite3.Connection, run: str) -> int:
    """Return how many steps of a run were measured."""
    return int(c.execute("SELECT COUNT(*) FROM checkpoints WHERE run = ?", (run,)).fetchone()[0])


def measured(
    c: sqlite3.Connection, run: str, layer: str, quantity: Quantity, after: int, at_most: int, until: int = 1 << 62
) -> list[Row]:
    """Return a measured quantity of one layer, or of the network, over training."""
    query = (
        "SELECT s.step, f.value FROM s CROSS JOIN measurements m ON m.run = :run AND m.step = s.step "
        "AND m.layer = :layer AND m.probe = :probe AND m.options = :options "
        "CROSS JOIN features f ON f.measurement = m.id AND f.statistic = :statistic WHERE s.step <= :until"
    )
    names = {"run": run, "layer": layer, "after": after, "until": until, **vars(quantity)}
    return thinned(single(c.execute(_STEPS + query, names)), at_most)


def of_layers(c: sqlite3.Connection, run: str, step: int, quantity: Quantity) -> dict[str, float]:
    """Return a quantity of every layer at one step."""
    rows = c.execute(
        "SELECT m.layer, f.value FROM measurements m CROSS JOIN features f ON f.measurement = m.id "
        "AND f.statistic = ? WHERE m.run = ? AND m.step = ? AND m.probe = ? AND m.options = ?",
        (quantity.statistic, run, step, quantity.probe, quantity.options),
    )
    return {layer: value for layer, value in rows if layer not in ("network", "pooled")}


def layer_names(c: sqlite3.Connection, run: str) -> list[str]:
    """Return the analysed layers of a run, in the order of its last checkpoint."""
    last = c.execute("SELECT MAX(step) FROM layers WHERE run = ?", (run,)).fetchone()[0]
    rows = c.execute("SELECT layer FROM layers WHERE run = ? AND step = ? ORDER BY position", (run, last))
    return [layer for (layer,) in rows]


def block_names(c: sqlite3.Connection, run: str) -> list[str]:
    """Return the blocks of a run that were measured on a fixed batch, at its first steps or its last."""
    query = (
        "SELECT DISTINCT layer FROM measurements WHERE run = :run AND probe = 'activations' AND layer <> 'network' AND "
        "step IN (SELECT * FROM (SELECT step FROM checkpoints WHERE run = :run ORDER BY step LIMIT :n) UNION "
        "SELECT * FROM (SELECT step FROM checkpoints WHERE run = :run ORDER BY step DESC LIMIT :n)) ORDER BY layer"
    )
    return [block for (block,) in c.execute(query, {"run": run, "n": N_EXAMPLES})]


def quantities(c: sqlite3.Connection, run: str, steps: Sequence[int]) -> set[tuple[Quantity, bool]]:
    """Return the quantities measured at some steps, each with whether it is of the network rather than of layers."""
    found = set()
    for step in steps:
        rows = c.execute(
            "SELECT DISTINCT m.probe, m.options, f.statistic, m.layer IN ('network', 'pooled') FROM measurements m "
            "JOIN features f ON f.measurement = m.id WHERE m.run = ? AND m.step = ?",
            (run, step),
        )
        found |= {(Quantity(*row[:3]), bool(row[3])) for row in rows if "@" not in row[2]}
    return found


def examples(steps: Sequence[int]) -> list[int]:
    """Return a few of the steps, including the first and the last."""
    if len(steps) <= N_EXAMPLES:
        return list(steps)
    return [steps[i * (len(steps) - 1) // (N_EXAMPLES - 1)] for i in range(N_EXAMPLES)]
