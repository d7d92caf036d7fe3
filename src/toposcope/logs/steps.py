"""The step of every row: counted on where a log begins again, and refused where a column cannot be steps."""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import identify_columns
from toposcope.logs.raw import Numbers, RawLog, one_line, plural
from toposcope.logs.table import is_step
from toposcope.typing import Steps, Vector

MIN_STEP_SHARE, MIN_WHOLE_SHARE = 0.9, 0.5  # share of the rows with a loss that have a step, and of these a whole one
MAX_TIME_SPAN = 0.25  # share of its first number by which a column of times goes on
MAX_RESTARTS_SHARE = 0.1  # of the rows: where steps go back more often, rows are out of order
N_RESTART_ROWS, MIN_RESTART_ROWS = 5, 3  # rows around a restart whose losses are compared, at most and at least
MIN_RESTART_FALL = 3.0  # median changes from row to row by which a loss falls, where another run may begin
RANK_SHARE, MIN_RANK_STEPS = 0.9, 5  # share of steps with equally many rows, of several processes; steps to judge by

MIN_TIME = 1e9  # first number of a column of times, in seconds since 1970 or parts of them


def row_steps(raw: RawLog, column: str | None, loss: Numbers) -> Vector:
    """Return the step of every row, NaN where it has none; without a column of steps, rows with a loss are counted."""
    return np.cumsum(loss.logged).astype(np.float64) if column is None else raw.numbers[column].values


def axis_of(column: str | None) -> str:
    """Return what a column of steps counts, by its name."""
    named = identify_columns([column or ""]).named
    return "epoch" if "epoch" in named else "token" if "tokens" in named else "step"


def check_steps(column: pl.Series, row: Vector, logged: NDArray[np.bool_]) -> None:
    """Refuse a column that cannot be steps: fractions of an epoch, or times."""
    fix = "name the column of steps with --column step=NAME"
    steps = row[logged]
    whole = is_step(steps)
    if len(steps) and whole.mean() < MIN_WHOLE_SHARE:
        at = int(np.flatnonzero(logged)[np.argmin(whole)])
        raise ToposcopeError(
            f"column {one_line(column.name)!r} has no whole step in {plural(int((~whole).sum()), 'row', 'rows')} of "
            f"{len(steps)}, such as {one_line(column[at])!r}; {fix}"
        )
    steps = steps[whole]
    if len(steps) and steps.min() >= MIN_TIME and np.ptp(steps) <= MAX_TIME_SPAN * steps.min():
        raise ToposcopeError(
            f"column {one_line(column.name)!r} goes from {steps.min():.0f} to {steps.max():.0f}: these are times, not "
            f"steps of the optimiser; {fix}"
        )


def counted_on(row: Vector, epoch: Vector | None, loss: Numbers, remarks: list[str]) -> Vector:
    """Return the steps of rows, counted on where they begin again with every epoch, by its column or by the loss."""
    parts, gap = _parts(row, loss)
    if len(parts) < 2:
        return row
    if _are_epochs(row, epoch, loss.values, parts, gap):
        return _with_offsets(row, parts, gap, remarks)
    steps = row[np.concatenate(parts)]
    last = row[parts[-1]]
    if last.max() < steps.max() and len(parts) - 1 <= MAX_RESTARTS_SHARE * len(steps):
        remarks.append(
            f"the log goes back to step {last[0]:.0f} and ends at step {last.max():.0f}: rows after that are of an "
            "earlier part; if it was given up, delete it"
        )
    return row


def begins_with_every_epoch(row: Vector, epoch: Vector | None, loss: Numbers) -> bool:
    """Return whether steps begin again with every epoch."""
    parts, gap = _parts(row, loss)
    return len(parts) > 1 and _are_epochs(row, epoch, loss.values, parts, gap)


def _parts(row: Vector, loss: Numbers) -> tuple[list[Steps], float]:
    """Return the rows with a step and a loss, parted where steps go back, and the usual distance of steps."""
    usable = np.flatnonzero(loss.logged & is_step(row) & np.isfinite(loss.values))
    changes = np.diff(row[usable])
    gap = float(np.median(changes[changes > 0])) if (changes > 0).any() else 1.0
    return np.split(usable, np.flatnonzero(changes < 0) + 1), gap


def _are_epochs(row: Vector, epoch: Vector | None, losses: Vector, parts: list[Steps], gap: float) -> bool:
    """Return whether each part begins with the step that the first began with, and goes on from the one before."""
    first = row[parts[0][0]]
    if any(row[p[0]] > first + gap for p in parts):
        return False
    if epoch is not None and np.isfinite([epoch[p[0]] for p in parts]).all():
        return bool((np.diff([epoch[p[0]] for p in parts]) > 0).all())
    if min(len(np.unique(row[p])) for p in parts[:-1]) < MIN_RESTART_ROWS:
        return False
    n = N_RESTART_ROWS
    begin = float(np.median(losses[parts[0][:n]]))
    levels = [(np.median(losses[a[-n:]]), np.median(losses[b[:n]])) for a, b in pairwise(parts)]
    return all(abs(after - before) < abs(after - begin) for before, after in levels)


def appended_runs(row: Vector, epoch: Vector | None, loss: Numbers, rate: Vector | None = None) -> dict[int, list[str]]:
    """Return the rows at which further runs begin, each with what goes back to its beginning there besides the steps.

    That is the loss, or at whatever loss the epoch or the learning rate.
    """
    usable = np.flatnonzero(loss.logged & np.isfinite(row) & np.isfinite(loss.values))
    steps, losses = row[usable], loss.values[usable]
    rates = np.empty(0) if rate is None else rate[usable]
    changes = np.diff(steps)
    back = np.flatnonzero(changes < 0) + 1
    if not len(back) or len(back) > MAX_RESTARTS_SHARE * len(steps):
        return {}
    gap = float(np.median(changes[changes > 0])) if (changes > 0).any() else 1.0
    begin = steps.min()
    # another run may be logged at intervals of its own
    own = np.append(changes, 0.0)
    to_start = [int(i) for i in back if steps[0] - begin < gap and steps[i] - begin < max(gap, own[i])]
    # a rate that begins again as often, at even distances, is that of a schedule with restarts
    cycles = len(to_start) > 2 and bool(np.ptp(np.diff([0, *to_start])) <= 1)
    begins: dict[int, list[str]] = {0: []}
    for i, after in pairwise([*to_start, len(steps)]):
        change = 0.0 if epoch is None else epoch[usable[i]] - epoch[usable[i - 1]]
        if change > 0:
            continue
        before = slice(max(begins), i)
        signs = {
            "epoch": change < 0 and after - i > 1,
            "loss": _loss_begins_again(losses[before], losses[i:after], is_sure=change < 0),
            "learning rate": not cycles and _rate_begins_again(rates[before], rates[i:after]),
        }
        if any(signs.values()) and not _are_copies(steps[before], losses[before], steps[i:after], losses[i:after]):
            begins[i] = [sign for sign, is_there in signs.items() if is_there]
    # rows without a loss at the start of a run lie before its first loss
    return {
        int(usable[i - 1] + 1 + np.argmax(row[usable[i - 1] + 1 : usable[i] + 1] <= row[usable[i]])): signs
        for i, signs in begins.items()
        if i
    }


def _rate_begins_again(before: Vector, after: Vector) -> bool:
    """Return whether a learning rate jumps back towards its first value, or warms up from a low value once more."""
    n = min(N_RESTART_ROWS, len(before), len(after))
    if n < 2:
        return False
    first, last, again = before[0], before[-1], after[0]
    jump = abs(again - last)
    # of a log with many parts, few come further
    if jump > abs(again - first) and jump > MIN_RESTART_FALL * np.nanmedian(np.abs(np.diff(before))):
        return True
    return bool(before[n - 1] > first and after[n - 1] > again and again < np.nanmax(before) / 2)


def _are_copies(steps: Vector, losses: Vector, other_steps: Vector, other_losses: Vector) -> bool:
    """Return whether most steps of a part have the losses that they had before: rows that were written twice."""
    before = set(zip(steps.tolist(), losses.tolist(), strict=True))
    shared = np.isin(other_steps, steps)
    copies = [pair in before for pair in zip(other_steps[shared].tolist(), other_losses[shared].tolist(), strict=True)]
    return sum(copies) > len(copies) / 2


def _loss_begins_again(before: Vector, after: Vector, *, is_sure: bool) -> bool:
    """Return whether a loss is nearer to its beginning than to where it was, and these differ by more than noise."""
    n = min(N_RESTART_ROWS, len(before) // MIN_RESTART_ROWS, len(after))
    if not n:
        return False
    first, last, again = (float(np.median(part)) for part in (before[:n], before[-n:], after[:n]))
    if is_sure or abs(again - first) >= abs(again - last):
        return abs(again - first) < abs(again - last)
    return first - last > MIN_RESTART_FALL * float(np.median(np.abs(np.diff(before))))


def _with_offsets(row: Vector, parts: list[Steps], gap: float, remarks: list[str]) -> Vector:
    # rows without a loss belong to the part that the row before them is of
    part = np.searchsorted([p[0] for p in parts[1:]], np.arange(len(row)), side="right")
    offsets = np.concatenate([[0.0], np.cumsum([row[p].max() - row[p[0]] + gap for p in parts[:-1]])])
    times = "once" if len(parts) == 2 else f"{len(parts) - 1} times"
    last = row[parts[-1]].max() + offsets[-1]
    remarks.append(f"steps begin again {times}, as with every epoch: counted on to {last:.0f}")
    return np.asarray(row + offsets[part])


def rows_a_step(steps: Steps) -> int:
    """Return how many rows one after the other each step has; 1 unless nearly all have the same number."""
    if (np.diff(steps) > 0).all() or (n_steps := len(np.unique(steps))) < MIN_RANK_STEPS:
        return 1
    starts = np.flatnonzero(np.concatenate([[True], np.diff(steps) != 0]))
    lengths = np.diff(np.append(starts, len(steps)))
    usual = int(np.median(lengths))
    same = float((lengths == usual).mean())
    return usual if same >= RANK_SHARE and len(lengths) == n_steps else 1
