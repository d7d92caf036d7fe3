"""The training log that lies beside a series of checkpoints."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.steps import step_of
from toposcope.errors import ToposcopeError

_OTHERS = (AttributeError, OSError, csv.Error)
COLUMNS = ("loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss")
_OTHER_NAMES = {"lr": "learning_rate", "eval_loss": "validation_loss", "val_loss": "validation_loss"}


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


def read_log(path: Path) -> TrainingLog | None:
    """Return the log of a series, or None if there is none.

    Looks for ``log.csv`` (our runs), ``training_log.json`` (a list of rows), then the ``trainer_state.json`` of the
    Hugging Face Trainer, in the folder and in its newest checkpoint.

    Raises
    ------
    ToposcopeError
        If a log is there and cannot be understood.
    """
    folder = path if path.is_dir() else path.parent
    states = {step_of(p.parent.name): p for p in folder.glob("checkpoint-*/trainer_state.json")}
    newest = [states[max(step for step in states if step is not None)]] if set(states) - {None} else []
    candidates: list[tuple[Path, Callable[[Path], Iterable[Mapping[str, Any]]]]] = [
        (folder / "log.csv", _csv_rows),
        (folder / "training_log.json", _json_rows),
        *((p, _trainer_rows) for p in [folder / "trainer_state.json", *newest]),
    ]
    for file, rows in candidates:
        if file.is_file():
            try:
                return _table(rows(file))
            except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, *_OTHERS) as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                raise ToposcopeError(f"{file}: not a training log ({reason}); mend it or move it away") from error
    return None


def _csv_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _json_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = json.loads(path.read_bytes())
    return rows


def _trainer_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = json.loads(path.read_bytes())["log_history"]
    return rows


def _table(rows: Iterable[Mapping[str, Any]]) -> TrainingLog:
    """Gather rows by step; several rows of one step (a Trainer logs loss and evaluation apart) become one."""
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        values = by_step.setdefault(int(row["step"]), {})
        for name, value in row.items():
            column = _OTHER_NAMES.get(name, name)
            if column in COLUMNS and value not in ("", None):
                values[column] = float(value)
    steps = sorted(by_step)
    return TrainingLog(
        np.array(steps, dtype=np.int64),
        {c: np.array([by_step[s].get(c, np.nan) for s in steps], dtype=np.float64) for c in COLUMNS},
    )
