"""A log made of a raw table: what is no loss is left out, and everything that was left out or guessed is told."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import FACTS, LossColumn, guess, guess_facts, loss_column
from toposcope.logs.log import Log
from toposcope.logs.raw import LONGEST_REMARK, Numbers, Raw, counted, listed, numbers, one_line
from toposcope.logs.target import chosen, row_steps
from toposcope.logs.trouble import gaps, spikes, trouble
from toposcope.typing import Steps, Vector

LARGEST_STEP = 2**53
"""Beyond it floats hold no single steps."""
ROUND_OFF = 1e-6
"""Of the peak; a learning rate that is negative by less is 0."""
PER_ROW = ("learning_rate", "weight_norm", "grad_norm", "tokens")
_SIZE = re.compile(r"([\d.]+)\s*([KMBT]?)", re.IGNORECASE)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Rows(NamedTuple):
    """What a column has, by step: ascending, each once."""

    steps: Steps
    values: Vector


def log_of(raw: Raw, columns: Mapping[str, str], unit: str | None = None) -> Log:
    """Return the log of one run.

    Parameters
    ----------
    raw : Raw
        One run, one row a step; several rows of a step are fine.
    columns : mapping
        Columns that were named, by what they are (`toposcope.logs.columns.FIELDS`); the others are guessed.
    unit : str, optional
        Of the loss, one of `toposcope.logs.UNITS`, whatever its name tells.

    Raises
    ------
    ToposcopeError
        If no column is a loss, a named one is not there, or nothing in it is a loss.
    """
    named, losses = _columns(raw.table, columns)
    remarks = list(raw.remarks)
    target, step = chosen(raw.table, losses, named.get("step", []), remarks)
    told_unit, loss = _in_unit(target.loss, target.numbers, unit, remarks)
    row = row_steps(raw.table, step, loss)
    if step is None:
        remarks.append("no column of steps: rows with a loss are counted")
    elif loss.logged.sum() > 1 and (row[loss.logged] == row[loss.logged][0]).all():
        row = row_steps(raw.table, None, loss)
        remarks.append(f"column {step!r} says the same step everywhere: rows with a loss are counted")
    steps, values = _clean_losses(row, loss, remarks)
    beside = {
        what: rows
        for what in PER_ROW
        if what in named and len((rows := _by_step(row, numbers(raw.table[named[what][0]]))).steps)
    }
    facts = _facts(raw, named, remarks)
    remarks += _told(
        {"step": step, "loss": target.loss.column, **{w: named[w][0] for w in (*beside, *facts) if w in named}}
    )
    return Log(
        name=one_line(raw.name),
        steps=steps,
        loss=values,
        learning_rate=_learning_rate(beside.get("learning_rate"), steps, remarks),
        last_step=_last_step(facts.get("last_step"), steps, remarks),
        parameters=_size(facts.get("parameters")),
        tokens_per_step=_tokens_per_step(facts.get("tokens_per_step"), beside.get("tokens")),
        family=one_line(facts.get("family") or ""),
        schedule=one_line(facts.get("schedule") or ""),
        unit=told_unit,
        target=target.loss.column,
        norms={what: _at(beside[what], steps) for what in ("weight_norm", "grad_norm") if what in beside},
        remarks=tuple(one_line(remark, LONGEST_REMARK) for remark in remarks),
    )


def _columns(table: pl.DataFrame, columns: Mapping[str, str]) -> tuple[dict[str, list[str]], list[LossColumn]]:
    """Return the columns by what they are, those that were named first, and the columns of losses."""
    for what, name in columns.items():
        if name not in table.columns and what != "run":
            raise ToposcopeError(f"no column {one_line(name)!r}; it has {listed(table.columns)}")
    guessed = guess(name for name in table.columns if name not in columns.values())
    named = {**guessed.columns, **{what: [name] for what, name in columns.items() if what not in ("loss", "run")}}
    losses = [loss_column(columns["loss"])] if "loss" in columns else guessed.losses
    return named, losses


def _in_unit(loss: LossColumn, found: Numbers, unit: str | None, remarks: list[str]) -> tuple[str, Numbers]:
    """Return the unit and the losses in it."""
    if loss.unit != "perplexity":
        return unit or loss.unit, found
    if unit not in (None, "nats"):
        raise ToposcopeError(f"column {loss.column!r} is a perplexity; its logarithm is in nats, not in {unit}")
    remarks.append(f"column {loss.column!r} is a perplexity: the loss is its natural logarithm, in nats")
    with np.errstate(divide="ignore", invalid="ignore"):
        return "nats", found._replace(values=np.log(found.values))


def _clean_losses(row: Vector, loss: Numbers, remarks: list[str]) -> Rows:
    """Return the losses by step, and tell what was left out, and of a run that went wrong."""
    if loss.unreadable:
        remarks.append(f"{counted(loss.unreadable, 'row holds', 'rows hold')} no number as the loss: ignored")
    steps, values = row[loss.logged], loss.values[loss.logged]
    whole = np.isfinite(steps) & (steps >= 0) & (steps <= LARGEST_STEP) & (steps == np.floor(steps))
    if not whole.all():
        remarks.append(f"{counted(int((~whole).sum()), 'row', 'rows')} with a loss but no whole step: ignored")
        if not whole.any():
            raise ToposcopeError(
                "no row with a loss has a whole step of 0 or more; name the column with --column step=NAME"
            )
    steps, values = steps[whole].astype(np.int64), values[whole]
    finite, positive = np.isfinite(values), values > 0
    if not finite.any():
        raise ToposcopeError("no loss is finite")
    if not (finite & positive).any():
        raise ToposcopeError("no loss is positive: losses must be; a log-likelihood has the opposite sign")
    if not finite.all():
        remarks.append(
            f"{counted(int((~finite).sum()), 'row has', 'rows have')} a loss that is NaN or infinite: ignored"
        )
    if (finite & ~positive).any():
        remarks.append(
            f"{counted(int((finite & ~positive).sum()), 'row has', 'rows have')} a loss of 0 or below: ignored"
        )
    went_wrong = trouble(steps, np.where(positive, values, np.nan))
    steps, values = steps[finite & positive], values[finite & positive]
    back = int((np.diff(steps) < 0).sum())
    if back:
        times = "once" if back == 1 else f"{back} times"
        remarks.append(f"steps go back {times} (a resumed run, or several writers): rows are sorted by step")
    rows = _last_of_step(steps, values)
    repeated = len(steps) - len(rows.steps)
    if repeated:
        remarks.append(f"{counted(repeated, 'row repeats', 'rows repeat')} a step: the later row counts")
    remarks += [*gaps(rows.steps), *spikes(rows.steps, rows.values)]
    remarks += went_wrong
    return rows


def _last_of_step(steps: Steps, values: Vector) -> Rows:
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True) if len(steps) else np.empty(0, bool)
    return Rows(steps[last], values[last])


def _by_step(row: Vector, found: Numbers) -> Rows:
    """Return the finite values of a column by step."""
    kept = np.isfinite(found.values) & np.isfinite(row) & (row >= 0) & (row <= LARGEST_STEP)
    return _last_of_step(row[kept].astype(np.int64), found.values[kept])


def _at(rows: Rows, steps: Steps) -> Vector:
    """Return the values at given steps, NaN where there is none."""
    if not len(rows.steps):
        return np.full(len(steps), np.nan)
    place = np.minimum(np.searchsorted(rows.steps, steps), len(rows.steps) - 1)
    return np.where(rows.steps[place] == steps, rows.values[place], np.nan)


def _learning_rate(rows: Rows | None, steps: Steps, remarks: list[str]) -> Vector:
    """Return the learning rate at the steps of the loss, between rows that have it by interpolation."""
    if rows is None or not len(rows.steps):
        return np.full(len(steps), np.nan)
    rates = rows.values
    below = rates < 0
    if below.any():
        noise = rates >= -ROUND_OFF * max(float(rates.max()), 0.0)
        rates = np.where(below & noise, 0.0, rates)
        told = "taken as 0" if noise.all() else "taken as 0 where that is round-off, else ignored"
        remarks.append(f"the learning rate is negative in {counted(int(below.sum()), 'row', 'rows')}: {told}")
        rows = Rows(rows.steps[noise], rates[noise])
    found = _at(rows, steps)
    if len(rows.steps) < 2 or not np.isnan(found).any():
        return found
    # not beyond what was logged, but for one more row at either end
    reach = float(np.median(np.diff(rows.steps)))
    within = (steps >= rows.steps[0] - reach) & (steps <= rows.steps[-1] + reach)
    filled = np.isnan(found) & within
    if filled.any():
        found[filled] = np.interp(steps[filled], rows.steps, rows.values)
        remarks.append(f"the learning rate is interpolated in {int(filled.sum())} of {len(steps)} rows")
    return found


def _facts(raw: Raw, named: Mapping[str, list[str]], remarks: list[str]) -> dict[str, object]:
    """Return what is known of the run as a whole: from columns with one value, else from what the tool keeps."""
    keys = guess_facts(raw.facts)
    facts = {what: raw.facts[key] for what, key in keys.items() if raw.facts[key] not in (None, "")}
    for what in FACTS:
        for column in named.get(what, []):
            values = raw.table[column].drop_nulls().unique(maintain_order=True)
            if len(values) == 1:
                facts[what] = values[0]
                break
            if len(values):
                remarks.append(f"column {column!r} has {len(values)} values in one run: ignored")
    return facts


def _told(named: Mapping[str, str | None]) -> list[str]:
    """Tell which columns were taken, where their names do not say it themselves."""
    guessed = [f"{what} = {column!r}" for what, column in named.items() if column is not None and column != what]
    return [f"columns: {', '.join(guessed)}"] if guessed else []


def _last_step(told: object, steps: Steps, remarks: list[str]) -> int | None:
    """Return the last step of the plan, unless the log goes beyond it."""
    last = _size(told)
    if not np.isfinite(last) or not 1 <= last <= LARGEST_STEP:
        return None
    if last < steps[-1]:
        remarks.append(f"the last step is said to be {last:.0f}, but the log goes on to {steps[-1]}: ignored")
        return None
    return int(last)


def _tokens_per_step(told: object, tokens: Rows | None) -> float:
    """Return the tokens of a step as told, else the median increase of the tokens seen; NaN if nothing tells it."""
    size = _size(told)
    if np.isfinite(size) or tokens is None or len(tokens.steps) < 2:
        return size
    per_step = float(np.median(np.diff(tokens.values) / np.diff(tokens.steps)))
    return per_step if per_step > 0 else np.nan


def _size(told: object) -> float:
    """Return a positive number, be it written as ``160M``; NaN if it is none."""
    match = _SIZE.fullmatch(str(told).strip()) if isinstance(told, str) else None
    try:
        if match:
            return float(match.group(1)) * _THOUSANDS[match.group(2).upper()]
        size = float(told) if isinstance(told, str | int | float) and not isinstance(told, bool) else np.nan
    except (ValueError, OverflowError):
        return np.nan
    return size if np.isfinite(size) and size > 0 else np.nan
