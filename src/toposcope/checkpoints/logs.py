"""The training log that lies beside a series of checkpoints."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.sources import LocalSource, Source
from toposcope.checkpoints.steps import step_of
from toposcope.errors import ToposcopeError

_NO_LOG = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
    csv.Error,
)
"""What making sense of a file that is no training log may raise."""
COLUMNS = ("loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss", "weight_norm")
OTHER_NAMES = {
    "lr": "learning_rate",
    "eval_loss": "validation_loss",
    "val_loss": "validation_loss",
    "weight_norm_total": "weight_norm",
}


@dataclass(frozen=True, eq=False)
class TrainingLog:
    """What was logged, step by step.

    Attributes
    ----------
    steps : ndarray, shape (n,), int64
        Ascending.
    values : dict of ndarray, shape (n,), float64
        By column of `COLUMNS`; NaN where nothing was logged.
    """

    steps: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, rows: Mapping[int, Mapping[str, float]]) -> "TrainingLog":
        """Return the log of rows by step; a column that a row lacks was not logged."""
        steps = sorted(rows)
        return cls(
            np.array(steps, dtype=np.int64),
            {c: np.array([rows[s].get(c, np.nan) for s in steps], dtype=np.float64) for c in COLUMNS},
        )

    def filled(self, more: "TrainingLog") -> "TrainingLog":
        """Return the log with what it lacks, steps or values, taken from another."""
        steps = np.union1d(self.steps, more.steps)
        values = {c: np.full(len(steps), np.nan) for c in COLUMNS}
        for log in (more, self):
            for column, into in values.items():
                known = ~np.isnan(log.values[column])
                into[np.searchsorted(steps, log.steps[known])] = log.values[column][known]
        return TrainingLog(steps, values)


def read_log(place: Source | Path) -> TrainingLog | None:
    """Return the log of a series, or None if there is none.

    Looks for ``log.csv`` (our runs), ``training_log.json`` (a list of rows), then the ``trainer_state.json`` of the
    Hugging Face Trainer, in the folder and in its newest checkpoint.

    Raises
    ------
    ToposcopeError
        If a log is there and cannot be understood.
    """
    source = _folder(place)
    files = source.files()
    states = {step_of(n.split("/")[0]): n for n in files if re.fullmatch(r"checkpoint-[^/]*/trainer_state\.json", n)}
    newest = [states[max(step for step in states if step is not None)]] if set(states) - {None} else []
    candidates: list[tuple[str, Callable[[bytes], Iterable[Mapping[str, Any]]]]] = [
        ("log.csv", _csv_rows),
        ("training_log.json", _json_rows),
        *((name, _trainer_rows) for name in ["trainer_state.json", *newest]),
    ]
    for name, rows in candidates:
        file = files.get(name)
        if file is None:
            continue
        content = file.read(0, file.size).tobytes()
        try:
            return _table(rows(content))
        except _NO_LOG as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
            raise ToposcopeError(f"{file.location}: not a training log ({reason}); mend it or move it away") from error
    return None


def _folder(place: Source | Path) -> Source:
    """Return where a log may lie: beside a checkpoint that is a file of this machine."""
    path = place.path if isinstance(place, LocalSource) else place
    return LocalSource(path if path.is_dir() else path.parent) if isinstance(path, Path) else path


def _csv_rows(content: bytes) -> Iterable[Mapping[str, Any]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def _json_rows(content: bytes) -> Iterable[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = json.loads(content)
    return rows


def _trainer_rows(content: bytes) -> Iterable[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = json.loads(content)["log_history"]
    return rows


def _table(rows: Iterable[Mapping[str, Any]]) -> TrainingLog:
    """Gather rows by step; several rows of one step (a Trainer logs loss and evaluation apart) become one."""
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        values = by_step.setdefault(int(row["step"]), {})
        for name, value in row.items():
            column = OTHER_NAMES.get(name, name)
            if column in COLUMNS and value not in ("", None):
                values[column] = float(value)
    return TrainingLog.of(by_step)
