"""Which column of a log is the loss to foretell, and which row is which step."""

from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import AUXILIARY, LossColumn
from toposcope.logs.raw import Numbers, counted, listed, numbers
from toposcope.typing import Vector

FEWEST_VALIDATIONS = 20
"""Validation losses that make a curve of their own."""
SHARE_VALIDATED = 0.8
"""Of the run's steps, that validation losses must span to stand for it."""
SHARE_WITH_STEP = 0.9
"""Of the rows with a loss, that the column of steps must have."""


class Candidate(NamedTuple):
    """A column of losses that has some."""

    loss: LossColumn
    numbers: Numbers


def chosen(
    table: pl.DataFrame, losses: list[LossColumn], steps: list[str], remarks: list[str]
) -> tuple[Candidate, str | None]:
    """Return the loss to foretell and the column of its steps; None where there is none.

    It is the validation loss where that has 20 steps or more over the run, else the training loss.

    Parameters
    ----------
    table : polars.DataFrame
    losses : list of LossColumn
        Training losses first, the likeliest of each first.
    steps : list of str
        Columns that may be the steps.
    remarks : list of str
        What was chosen is added.

    Raises
    ------
    ToposcopeError
        If there is no column of losses, or nothing in it.
    """
    if not losses:
        named = [name for name in table.columns if not AUXILIARY & set(name.lower().split("_"))]
        raise ToposcopeError(f"no column of losses; it has {listed(named)}; name one with --column loss=NAME")
    found = [Candidate(loss, numbers(table[loss.column])) for loss in losses]
    logged = [c for candidate in found if (c := _without_gaps(candidate, found)).numbers.logged.any()]
    if not logged:
        unreadable = sum(candidate.numbers.unreadable for candidate in found)
        what = "holds no number" if unreadable else "is empty"
        raise ToposcopeError(f"column {found[0].loss.column!r} {what}: no loss was logged")
    training = next((c for c in logged if not c.loss.validation), None)
    validation = next((c for c in logged if c.loss.validation), None)
    pick = training or validation
    assert pick is not None
    why = ""
    if training and validation:
        n, share = _coverage(table, steps, training, validation)
        told = counted(n, "step", "steps")
        if n >= FEWEST_VALIDATIONS and share >= SHARE_VALIDATED:
            pick, why = validation, f" (the validation loss: it has {told}, over {share:.0%} of the run)"
        else:
            why = f" (the training loss: {validation.loss.column!r} has {told}, over {share:.0%} of the run)"
    others = [c.loss.column for c in logged if c.loss.column != pick.loss.column]
    if others and not why:
        why = f" (of several: {listed(others)})"
    if others:
        remarks.append(f"the loss is column {pick.loss.column!r}{why}")
    return pick, _step_column(table, steps, pick.numbers)


def _without_gaps(candidate: Candidate, others: list[Candidate]) -> Candidate:
    """Take NaN as not logged in rows that are another loss's: tables without nulls are written so."""
    logged, values, unreadable = candidate.numbers
    foreign = np.zeros(len(values), dtype=bool)
    for other in others:
        if other is not candidate:
            foreign |= np.isfinite(other.numbers.values)
    return candidate._replace(numbers=Numbers(logged & ~(np.isnan(values) & foreign), values, unreadable))


def _coverage(table: pl.DataFrame, names: list[str], training: Candidate, validation: Candidate) -> tuple[int, float]:
    """Return at how many steps there is a validation loss, and the share of the trained steps that they span."""
    column = _step_column(table, names, training.numbers)
    steps = row_steps(table, column, training.numbers)
    of_training, of_validation = (np.unique(steps[np.isfinite(c.numbers.values)]) for c in (training, validation))
    of_training, of_validation = (s[np.isfinite(s)] for s in (of_training, of_validation))
    if not len(of_validation) or not len(of_training):
        return len(of_validation), 1.0
    whole = float(np.ptp(of_training))
    return len(of_validation), min(1.0, float(np.ptp(of_validation)) / whole) if whole else 1.0


def _step_column(table: pl.DataFrame, names: list[str], loss: Numbers) -> str | None:
    """Return the first column of steps that nearly all rows with a loss have, else the one that most have."""
    shares = {name: float(numbers(table[name]).logged[loss.logged].mean()) for name in names}
    enough = [name for name, share in shares.items() if share >= SHARE_WITH_STEP]
    if enough:
        return enough[0]
    best = max(shares, key=lambda name: shares[name], default=None)
    return best if best is not None and shares[best] > 0 else None


def row_steps(table: pl.DataFrame, column: str | None, loss: Numbers) -> Vector:
    """Return the step of every row, NaN where it has none; without a column of steps, rows with a loss are counted."""
    return np.cumsum(loss.logged).astype(np.float64) if column is None else numbers(table[column]).values
