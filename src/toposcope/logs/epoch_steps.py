"""The steps of rows that state an epoch and a learning rate but no step, where these allow only one reading.

The Trainer of Hugging Face prints such rows, one every k steps. Their epochs say how many rows an epoch has. A warm-up
that starts, or a decay that ends, 1 / k rows late says k, since the rate is then that of the step before; so do planned
steps and epochs together, a first row at step 1, and the speed of the whole run. Every number that is printed is taken
to be known to half its last digit.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.logs.raw import Numbers, RawLog, size_of
from toposcope.typing import Vector

MAX_EVERY, MAX_EPOCHS = 5000, 200  # steps between two rows, and epochs of a plan, that are tried
MIN_RISE_ROWS, MIN_FALL_ROWS = 2, 5  # rows of a warm-up and of a decay that say where it starts and where it ends
MAX_MISFIT = 3e-4  # share of the peak by which a cosine may miss rates that are printed with many digits
HALF = 0.51  # of the last digit, and what two tools may round otherwise
MAX_UNSURE = 0.01  # share by which the rows of an epoch may be unsure, for a plan that they make
MAX_ROWS = 300  # of a line that is compared with each other
MAX_SHARED_DIGITS = 6  # significant digits that a tool may round all its numbers to; more are those of the numbers
SUMMARY = ("epoch", "train_runtime", "train_steps_per_second")  # what the Trainer says of a run that ended
_DIGITS = r"^[-+]?0*(?:\.0*)?([\d.]*?)(?:[eE].*)?$"


Bounds = tuple[float, float]  # at least and at most


class EpochSteps(NamedTuple):
    """Steps of rows by their epochs."""

    steps: Vector  # shape (n,), of all rows
    every: int  # steps between two rows; 0 if that is not known, and rows are counted
    last: int | None  # the last of the plan, counted in the same
    evidence: dict[str, str]  # of `steps` and `last_step`


class _Rows(NamedTuple):
    """Rows that are printed every k steps: the intervals until each, what it states, and half the last digits."""

    place: Vector
    epoch: Vector
    epoch_half: Vector
    rate: Vector
    rate_half: Vector
    per_epoch: Bounds  # rows of an epoch


def steps_by_epochs(
    raw: RawLog, named: Mapping[str, list[str]], loss: Numbers, planned: float, n_epochs: float
) -> EpochSteps | None:
    """Return the steps of rows without one; None where their epochs are whole or not evenly spaced.

    `planned` and `n_epochs` are the steps and epochs of the plan, NaN where they are not stated.
    """
    at, rows = _evenly_spaced(raw, named, loss)
    if rows is None:
        return None
    end = _end_by_rates(rows)
    n_epochs = n_epochs if np.isfinite(n_epochs) else end
    k = np.arange(1, MAX_EVERY + 1)
    fits, reasons = np.ones(len(k), dtype=bool), []
    for reason, mask in (
        ("the row of step 1", _by_first_row(k, rows)),
        ("learning rate and epoch", _by_line(k, rows, 0.0, 0.0)),
        ("learning rate and epoch", _by_line(k, rows, *(n_epochs * one for one in rows.per_epoch))),
        (
            f"{planned:,.0f} planned steps in {n_epochs:g} epochs",
            _by_plan(k, rows, (n_epochs, n_epochs), (planned, planned)),
        ),
        ("the speed of the whole run", _by_plan(k, rows, *_steps_by_speed(raw, rows))),
    ):
        if mask is not None and 0 < (fits & mask).sum() < fits.sum():
            fits &= mask
            reasons.append(reason)
    every = int(k[np.argmax(fits)]) if fits.sum() == 1 else 0
    r = float(np.mean(rows.per_epoch))
    if every:
        length = planned / n_epochs if np.isfinite(planned / n_epochs) else float(np.round(r * every))
        r = float(np.clip(length, every * rows.per_epoch[0], every * rows.per_epoch[1])) / every
    epoch = pl.Series(raw.numbers[named["epoch"][0]].values).fill_nan(None).forward_fill().fill_null(0.0).to_numpy()
    steps: Vector = np.searchsorted(at, np.arange(len(epoch)), side="right").astype(np.float64)
    if every:  # what is logged with a row, as an evaluation is, is of its step
        near = np.round(epoch * r)
        steps = np.where(
            np.abs(epoch * r - near) <= rows.epoch_half.max() * r, near * every, np.round(epoch * r * every)
        )
    steps[at] = rows.place * every if every else np.arange(1, len(at) + 1)
    if every and rows.place[0] == 0 and rows.epoch[0] + rows.epoch_half[0] >= 1 / (r * every):
        steps[at[0]] = 1
    is_sure = np.isfinite(n_epochs) and rows.per_epoch[1] - rows.per_epoch[0] <= MAX_UNSURE * r
    last = planned if every and np.isfinite(planned) else round(n_epochs * r * (every or 1)) if is_sure else np.nan
    why = " and ".join(dict.fromkeys(reasons))
    evidence = {"steps": f"logged every {every:,} steps, as {why} show"} if every else {}
    if last != planned:
        evidence["last_step"] = (
            f"its {n_epochs:g} epochs" if n_epochs != end else f"its learning rate ends at epoch {end:g}"
        )
    return EpochSteps(steps, every, None if np.isnan(last) else int(last), evidence)


def _evenly_spaced(
    raw: RawLog, named: Mapping[str, list[str]], loss: Numbers
) -> tuple[NDArray[np.int64], _Rows | None]:
    """Return the rows that are printed at a fixed interval: those with a learning rate, else those with a loss."""
    epochs, rates = (
        raw.numbers[name].values for name in (named["epoch"][0], (named.get("learning_rate") or named["epoch"])[0])
    )
    has_rates = bool(named.get("learning_rate"))
    at: NDArray[np.int64] = np.flatnonzero((np.isfinite(rates) if has_rates else loss.logged) & np.isfinite(epochs))
    if (np.diff(epochs[at]) < 0).any():  # a resumed run: not what it repeats
        at = at[np.append(epochs[at][:-1] < np.minimum.accumulate(epochs[at][::-1])[::-1][1:], True)]
    epoch = epochs[at]
    if len(at) < 3 or (epoch % 1 == 0).all() or epoch[-1] == epoch[1]:
        return at, None
    names = [named[q][0] for q in ("epoch", "learning_rate", "grad_norm") if named.get(q)]
    texts = [raw.table[name].cast(pl.String).gather(at) for name in names]
    digits = {_longest(_significant(text)) for text in texts}
    shared = len(digits) == 1 and max(digits) <= MAX_SHARED_DIGITS
    half, rate_half = (_half_units(text, shared=shared) for text in texts[: 1 + has_rates] * (2 - has_rates))
    spacing = (epoch[-1] - epoch[1]) / (len(epoch) - 2)
    rate = rates[at] if has_rates else np.full(len(at), np.nan)
    first = float(np.median(epoch / spacing - np.arange(len(epoch))))  # intervals until the first row
    for begin in sorted(range(round(first) - 1, round(first) + 2), key=lambda n: (n not in (0, 1), abs(n - 1))):
        place = begin + np.arange(len(epoch), dtype=np.float64)
        regular = place > 0  # not a first row at step 0 or 1
        low = (place / (epoch + half))[regular].max()
        high = np.divide(place, epoch - half, out=np.full(len(place), np.inf), where=epoch > half)[regular].min()
        if begin >= 0 and low <= high:
            return at, _Rows(place, epoch, half, rate, rate_half, (low, high))
    return at, None


def _half_units(texts: pl.Series, *, shared: bool) -> Vector:
    """Return half the last digit of printed numbers: of as many significant digits, or of as many decimals, as any."""
    values = np.abs(texts.cast(pl.Float64, strict=False).fill_null(0.0).to_numpy())
    exponent = texts.str.extract(r"[eE]([-+]?\d+)$").cast(pl.Int64).fill_null(0)
    decimals = texts.str.extract(r"\.(\d+)").str.len_chars().fill_null(0).cast(pl.Int64) - exponent
    magnitude = np.floor(np.log10(np.where(values > 0, values, 1e-300)))
    by_digits: Vector = HALF * 10.0 ** (magnitude - _longest(_significant(texts)) + 1)
    return by_digits if shared else np.maximum(by_digits, HALF * 10.0 ** -_longest(decimals))


def _significant(texts: pl.Series) -> pl.Series:
    return texts.str.extract(_DIGITS).str.replace(".", "", literal=True).str.len_chars()


def _longest(lengths: pl.Series) -> int:
    return max(lengths.drop_nulls().to_list(), default=0)


def _line(rows: _Rows, part: NDArray[np.bool_], sign: int) -> Bounds:
    """Return between which counts a line through all rates of a part meets 0, after it (1) or before it (-1)."""
    chosen = np.flatnonzero(part)
    chosen = chosen[:: len(chosen) // MAX_ROWS + 1]
    i, low, high = rows.place[chosen], (rows.rate - rows.rate_half)[chosen], (rows.rate + rows.rate_half)[chosen]
    # the line of a row's lowest rate stays below the highest of every other: linear in where it meets 0
    factor = sign * (low[:, None] - high[None, :])
    bound = sign * (i[None, :] * low[:, None] - i[:, None] * high[None, :])
    least = np.where(factor < 0, bound / np.where(factor == 0, np.nan, factor), -np.inf)
    most = np.where(factor > 0, bound / np.where(factor == 0, np.nan, factor), np.inf)
    least_own = i.max() if sign > 0 else -np.inf
    most_own = i.min() if sign < 0 else np.inf
    return max(float(np.nanmax(least)), least_own), min(float(np.nanmin(most)), most_own)


def _parts(rows: _Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows are surely of a warm-up, and which surely of what follows it."""
    peak = int(np.argmax(np.nan_to_num(rows.rate, nan=-np.inf)))
    place = np.arange(len(rows.place))
    return (place < peak) & (rows.place > 0), (place > peak) & (rows.place > 0)


def _by_first_row(k: NDArray[np.int64], rows: _Rows) -> NDArray[np.bool_] | None:
    """Return which k a first row at step 1 allows."""
    if rows.place[0] != 0 or rows.epoch[0] <= rows.epoch_half[0]:
        return None
    low, high = rows.epoch[0] - rows.epoch_half[0], rows.epoch[0] + rows.epoch_half[0]
    return np.asarray((1 / k <= high * rows.per_epoch[1]) & (1 / k >= low * rows.per_epoch[0]))


def _by_line(k: NDArray[np.int64], rows: _Rows, first: float, last: float) -> NDArray[np.bool_] | None:
    """Return which k a line of rates allows that meets 0 between two counts; None where it may meet it just there."""
    rise, fall = _parts(rows)
    part, least, sign = (fall, MIN_FALL_ROWS, 1) if first > 0 else (rise, MIN_RISE_ROWS, -1)
    if part.sum() < least or not np.isfinite(first) or not np.isfinite(rows.rate).all():
        return None
    low, high = _line(rows, part, sign)
    if low > high or (low <= last and first <= high):
        return None
    return np.asarray((first + 1 / k <= high) & (last + 1 / k >= low))


def _by_plan(k: NDArray[np.int64], rows: _Rows, epochs: Bounds, steps: Bounds) -> NDArray[np.bool_] | None:
    """Return which k so many steps in so many epochs allow; the last batches of an epoch may make a step or none."""
    if not np.isfinite([*epochs, *steps]).all():
        return None
    low, high = rows.per_epoch
    return np.asarray((epochs[0] * (k * low - 1) <= steps[1]) & (epochs[1] * (k * high + 1) >= steps[0]))


def _steps_by_speed(raw: RawLog, rows: _Rows) -> tuple[Bounds, Bounds]:
    """Return the epochs and the steps, at least and at most, of a run that ended, by its time and speed."""
    texts = [str(raw.facts.get(name) or "") for name in SUMMARY]
    epochs, seconds, speed = map(size_of, texts)
    off, off_speed = (float(_half_units(pl.Series([text]), shared=False)[0]) for text in texts[1:])
    off_epochs = float(rows.epoch_half.max())
    steps = (seconds - off) * (speed - off_speed), (seconds + off) * (speed + off_speed)
    return (epochs - off_epochs, epochs + off_epochs), steps


def _end_by_rates(rows: _Rows) -> float:
    """Return the only number of epochs at whose end the rates are 0, along a line or a cosine; else NaN."""
    _, fall = _parts(rows)
    if fall.sum() < MIN_FALL_ROWS or not np.isfinite(rows.rate[fall]).all():
        return np.nan
    epochs = np.arange(max(1, int(np.ceil(rows.epoch[-1] - rows.epoch_half[-1]))), MAX_EPOCHS + 1)
    low, high = _line(rows, fall, 1)
    if low <= high:
        # one row later at most, where the rate is that of the step before
        ends = (epochs * rows.per_epoch[0] <= high) & (epochs * rows.per_epoch[1] + 1 >= low)
    else:
        ends = np.array([_misfit_of_cosine(rows, fall, float(e * np.mean(rows.per_epoch))) <= 0 for e in epochs])
    return float(epochs[np.argmax(ends)]) if ends.sum() == 1 else np.nan


def _misfit_of_cosine(rows: _Rows, fall: NDArray[np.bool_], end: float) -> float:
    """Return by how much rates miss the best cosine to 0 at a count, beyond what rounding allows."""
    chosen = np.flatnonzero(fall)
    chosen = chosen[:: len(chosen) // MAX_ROWS + 1]
    i, rate = rows.place[chosen], rows.rate[chosen]
    late, start = np.meshgrid((0.0, 0.02, 0.1, 0.5, 1.0), rows.place[chosen[0] - 1] - np.linspace(0, 1, 21))
    x = (i - late[..., None] - start[..., None]) / (end - start[..., None])
    shape = 0.5 * (1 + np.cos(np.pi * np.clip(x, 0, 1)))
    peak = (shape @ rate)[..., None] / (shape**2).sum(axis=-1, keepdims=True)
    allowed = np.maximum(3 * rows.rate_half[chosen], MAX_MISFIT * rate.max())
    return float((np.abs(peak * shape - rate) - allowed).max(axis=-1).min())
