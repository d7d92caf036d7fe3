"""What a run logged, one row per step."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.logs.columns import Columns
from toposcope.logs.raw import Numbers
from toposcope.typing import Steps, Vector

COLUMNS = ("loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss", "weight_norm")
"""What every table has, logged or not; the two losses are in nats per token."""
MAX_STEP = 2**53  # beyond it, floats hold no single steps


@dataclass(frozen=True, eq=False)
class LogTable:
    """What was logged, step by step.

    Attributes
    ----------
    steps : ndarray, shape (n,), int64
        Ascending, each once.
    values : dict of ndarray, shape (n,), float64
        Each of `COLUMNS`, then any further losses (of any unit and sign) and accuracies under the log's own names;
        `toposcope.logs.columns.target_of` describes them. As logged, infinities included; NaN also where nothing was
        logged.
    nan_steps : dict of ndarray
        Steps at which NaN was logged, by name; a name may be absent.
    """

    steps: Steps
    values: dict[str, Vector]
    nan_steps: dict[str, Steps] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Mapping[int, Mapping[str, float]]) -> "LogTable":
        """Return the table of rows by step; a column that a row lacks was not logged."""
        steps = sorted(rows)
        names = dict.fromkeys([*COLUMNS, *(name for row in rows.values() for name in row)])
        nan = {
            name: np.array([s for s in steps if math.isnan(rows[s].get(name, 0.0))], dtype=np.int64) for name in names
        }
        return cls(
            np.array(steps, dtype=np.int64),
            {c: np.array([rows[s].get(c, np.nan) for s in steps], dtype=np.float64) for c in names},
            {name: at for name, at in nan.items() if len(at)},
        )

    @property
    def further_targets(self) -> list[str]:
        """Names of the losses and accuracies next to ``loss`` and ``validation_loss``."""
        return [name for name in self.values if name not in COLUMNS]

    def filled_from(self, other: "LogTable") -> "LogTable":
        """Return the table with the steps and values it lacks taken from another."""
        steps = np.union1d(self.steps, other.steps)
        values = {name: np.full(len(steps), np.nan) for name in (*self.values, *other.further_targets)}
        for table in (other, self):
            for name, column in table.values.items():
                logged = ~np.isnan(column)
                values[name][np.searchsorted(steps, table.steps[logged])] = column[logged]
        nan = {}
        for name, column in values.items():
            logged_nan = [at for table in (self, other) if (at := table.nan_steps.get(name)) is not None]
            nan[name] = steps[np.isnan(column) & np.isin(steps, np.concatenate(logged_nan or [steps[:0]]))]
        return LogTable(steps, values, {name: at for name, at in nan.items() if len(at)})

    def until(self, step: float) -> "LogTable":
        """Return the rows up to a step, that included."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        return LogTable(
            self.steps[:n],
            {name: column[:n] for name, column in self.values.items()},
            {name: at[at <= step] for name, at in self.nan_steps.items()},
        )

    def frame(self) -> pl.DataFrame:
        """Return steps and logged columns, NaN where that was logged and null where nothing was."""
        columns = [pl.Series("step", self.steps)]
        for name, values in self.values.items():
            column = pl.Series(name, values, nan_to_null=True)
            if name in self.nan_steps:
                column = column.scatter(np.searchsorted(self.steps, self.nan_steps[name]), np.nan)
            columns += [column] if column.null_count() < len(column) else []
        return pl.DataFrame(columns)


class ByStep(NamedTuple):
    """The values of one column: steps ascend, each once."""

    steps: Steps
    values: Vector

    def at(self, steps: Steps) -> Vector:
        """Return the values at given steps, NaN where there is none."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        place = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.where(self.steps[place] == steps, self.values[place], np.nan)


def last_of_step(steps: Steps, values: Vector) -> ByStep:
    """Return values by step; the later row of a step counts."""
    if (steps[1:] > steps[:-1]).all():
        return ByStep(steps, values)
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True)
    return ByStep(steps[last], values[last])


def mean_of_step(steps: Steps, values: Vector) -> ByStep:
    """Return the mean value of each step."""
    each, place, counts = np.unique(steps, return_inverse=True, return_counts=True)
    return ByStep(each, np.bincount(place, weights=values) / counts)


def is_step(steps: Vector) -> NDArray[np.bool_]:
    """Return which numbers are steps: whole, and 0 or more."""
    with np.errstate(invalid="ignore"):
        return np.asarray((steps >= 0) & (steps <= MAX_STEP) & (steps == np.floor(steps)))


def log_table(
    numbers: Mapping[str, Numbers], columns: Columns, steps: Vector, preferred: Collection[str] = ()
) -> LogTable:
    """Return the columns of `COLUMNS` and the further targets of a table; rows without a step are left out."""
    valid = is_step(steps)
    row_steps = np.where(valid, steps, 0).astype(np.int64)
    kept = np.unique(row_steps[valid])
    values, nan = dict.fromkeys(COLUMNS, np.full(len(kept), np.nan)), {}
    for name, source in sources(columns, preferred).items():
        column = numbers[source]
        logged = column.logged & valid
        by_step = last_of_step(row_steps[logged], column.values[logged])
        values[name] = by_step.at(kept)
        nan[name] = by_step.steps[np.isnan(by_step.values)]
    return LogTable(kept, values, {name: at for name, at in nan.items() if len(at)})


def sources(columns: Columns, preferred: Collection[str] = ()) -> dict[str, str]:
    """Return which column of a log each column of its table is read from; a column of the very name comes first."""
    found = {
        name: name if name in columns.named[name] else columns.named[name][0]
        for name in COLUMNS
        if columns.named.get(name)
    }
    for name, validation in (("loss", False), ("validation_loss", True)):
        in_nats = [t.name for t in columns.losses if t.validation == validation and t.unit == "nats"]
        if in_nats:
            # eval/c4/loss is of one of several texts, eval_loss of the run's own
            found[name] = min(in_nats, key=lambda n: (n not in preferred, n != name, validation and n.count("/")))
    taken = set(found.values())
    further = [t.name for t in (*columns.losses, *columns.accuracies) if t.name not in taken]
    return found | {name: name for name in further}
