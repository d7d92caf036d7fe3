"""Which column of a log is the loss to forecast, and which step each row belongs to."""

import shlex
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import AUXILIARY, Target
from toposcope.logs.raw import Numbers, join_names, numbers, one_line, plural
from toposcope.logs.steps import row_steps
from toposcope.logs.table import is_step

MIN_VALIDATIONS = 20
"""Validation losses that make a curve of their own."""
MIN_VALIDATED_SHARE = 0.8
"""Share of the run's steps that validation losses must span to stand for the run."""
MIN_STEP_SHARE = 0.9
"""Share of the rows with a loss that the column of steps must have."""
MIN_ROWS, MIN_FIRST_LOSS, MAX_NAMES = 3, 0.1, 12
"""Of a column that may be the loss by its numbers alone; and names in a message."""


class Candidate(NamedTuple):
    """A column of losses."""

    target: Target
    numbers: Numbers


def choose_target(
    table: pl.DataFrame, losses: list[Target], steps: list[str], remarks: list[str]
) -> tuple[Candidate, str | None]:
    """Return the loss to forecast and the column of its steps; None if the table has no such column.

    It is the validation loss where that has 20 steps or more over the run, else the training loss.

    Parameters
    ----------
    table : polars.DataFrame
    losses : list of Target
        Training losses first, the likeliest of each first.
    steps : list of str
        Columns that may be the steps.
    remarks : list of str
        The choice is added.

    Raises
    ------
    ToposcopeError
        If there is no column of losses, or nothing in it.
    """
    if table.is_empty():
        raise ToposcopeError("nothing was logged yet")
    if not losses:
        names = [name for name in table.columns if AUXILIARY.isdisjoint(name.lower().split("_"))]
        if not steps and names:
            raise ToposcopeError(_unrecognised(table.select(names)))
        raise ToposcopeError(f"no column of losses; it has {join_names(names)}; name one with --column loss=NAME")
    candidates = [Candidate(loss, numbers(table[loss.name])) for loss in losses]
    logged = [c for one in candidates if (c := _without_gaps(one, candidates)).numbers.logged.any()]
    if not logged:
        unreadable = sum(candidate.numbers.unreadable for candidate in candidates)
        what = "holds no number" if unreadable else "is empty"
        raise ToposcopeError(f"column {losses[0].name!r} {what}: no loss was logged")
    training = next((c for c in logged if not c.target.validation), None)
    validation = next((c for c in logged if c.target.validation), None)
    choice, reason = logged[0], ""
    if training and validation:
        n, share = _coverage(table, steps, training, validation)
        extent = f"{plural(n, 'step', 'steps')}, over {share:.0%} of the run"
        if n >= MIN_VALIDATIONS and share >= MIN_VALIDATED_SHARE:
            choice, reason = validation, f" (the validation loss: it has {extent})"
        else:
            choice, reason = training, f" (the training loss: {validation.target.name!r} has {extent})"
    others = [c.target.name for c in logged if c.target.name != choice.target.name]
    if others:
        remarks.append(f"the loss is column {choice.target.name!r}{reason or f' (of several: {join_names(others)})'}")
    return choice, _step_column(table, steps, choice.numbers)


def _unrecognised(table: pl.DataFrame) -> str:
    """Return which columns are there, and how to name those of steps and losses; their numbers may say which."""
    columns = {name: values for name in table.columns if (values := numbers(table[name]).values).size > MIN_ROWS}
    steps = [name for name, values in columns.items() if is_step(values).all() and (np.diff(values) > 0).all()]
    losses = [
        name
        for name, values in columns.items()
        if (values > 0).all() and not is_step(values).all() and values[0] > MIN_FIRST_LOSS and values[-1] < values[0]
    ]
    step, loss = (one_line(found[0]) if len(found) == 1 else "NAME" for found in (steps, losses))
    names = ", ".join(repr(one_line(name)) for name in table.columns[:MAX_NAMES])
    more = f" and {len(table.columns) - MAX_NAMES} more" if len(table.columns) > MAX_NAMES else ""
    return (
        f"no column is recognised as the loss or the step among {names}{more}: name them, as in "
        f"{shlex.join(['--column', f'step={step}', '--column', f'loss={loss}'])}"
    )


def _without_gaps(candidate: Candidate, others: list[Candidate]) -> Candidate:
    """Count NaN as not logged in rows that hold another loss: tools without nulls write tables so."""
    logged, values, unreadable = candidate.numbers
    foreign = np.zeros(len(values), dtype=bool)
    for other in others:
        if other is not candidate:
            foreign |= np.isfinite(other.numbers.values)
    return candidate._replace(numbers=Numbers(logged & ~(np.isnan(values) & foreign), values, unreadable))


def _coverage(table: pl.DataFrame, names: list[str], training: Candidate, validation: Candidate) -> tuple[int, float]:
    """Return the number of steps with a validation loss, and the share of the trained steps that they span."""
    column = _step_column(table, names, training.numbers)
    steps = row_steps(table, column, training.numbers)
    trained, validated = (np.unique(steps[np.isfinite(c.numbers.values)]) for c in (training, validation))
    trained, validated = (s[np.isfinite(s)] for s in (trained, validated))
    if not len(validated) or not len(trained):
        return len(validated), 1.0
    span = float(np.ptp(trained))
    return len(validated), min(1.0, float(np.ptp(validated)) / span) if span else 1.0


def _step_column(table: pl.DataFrame, names: list[str], loss: Numbers) -> str | None:
    """Return the first column of steps that nearly all rows with a loss have, else the one that most have."""
    shares = {name: float(numbers(table[name]).logged[loss.logged].mean()) for name in names}
    complete = [name for name, share in shares.items() if share >= MIN_STEP_SHARE]
    if complete:
        return complete[0]
    best = max(shares, key=lambda name: shares[name], default=None)
    if best is not None and not shares[best] and (texts := table[names[0]].drop_nulls()).len():
        raise ToposcopeError(
            f"column {one_line(names[0])!r} holds no number but {one_line(texts[0])!r} and the like; name the column "
            "of steps with --column step=NAME"
        )
    return best if best is not None and shares[best] > 0 else None
