"""Whether the log next to a series is of the same run: its length, learning rates, losses and norms of the weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.integrity.finding import Finding, Severity, steps_text
from toposcope.integrity.summary import CheckpointSummary
from toposcope.logs.table import ByStep
from toposcope.typing import Steps, Vector

if TYPE_CHECKING:
    from toposcope.logs import LogTable

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_LOGGED = 4  # checkpoints that can be compared with the log
MIN_TIMES = 2.9  # how many times longer than its log a run is whose steps count something else
LOG_TOLERANCE = 1e-3  # relative, of what was logged: its last digit
MAX_OFF_TIMES = 0.02  # relative, of the ends of series and log from a multiple: one may count the other's parts
MIN_UNIT = 3  # power of ten of a unit of rates, such as thousandths; ten times a rate is another rate
MIN_RELATED = 0.5  # correlation of losses that are surely of one run
MAX_CHANCE_FALL = 2.0  # of their correlation times the root of their number; 1 in 40 of a part of the same batches
MAX_NOISE_RATIO = 3.0  # of variances; of two runs of one kind it is 1, and of 10 losses below 3 in 19 of 20
MAX_OTHER_LEVEL = 0.25  # relative difference of the median losses of two runs of one kind


class _Pairs(NamedTuple):
    """Steps, what checkpoints hold there, and the least, the nearest and the largest that was logged about then."""

    steps: Steps
    held: Vector
    low: Vector
    logged: Vector
    high: Vector

    def words(self, k: int, what: str) -> str:
        return f"at step {self.steps[k]} {what} {self.held[k]:.4g}, the log {self.logged[k]:.4g}"

    def where(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        return [int(step) for step in self.steps[chosen]]


def _finding(steps: Sequence[int], message: str, severity: Severity = "fault") -> Finding:
    return Finding("log", severity, tuple(steps), "", message)


def log_findings(summaries: Sequence[CheckpointSummary], log: "LogTable | None") -> Iterator[Finding]:
    """Find checkpoints that a log does not fit, and logs of other runs."""
    items = [item for item in summaries if not item.error]
    if log is None or not len(log.steps) or len(items) < MIN_LOGGED:
        return
    steps, last = [item.step for item in items], int(log.steps[-1])
    found = [*_values_compared(items, log), *_norms(items, log)]
    foreign = any(finding.severity == "fault" for finding in found)
    beyond = [*_beyond_the_log(steps, log)]
    if (foreign or beyond) and (times := _times(steps, log)):
        words = f"the series ends at {steps[-1]:,}, its log at {last:,}: one of them may count the other's steps by "
        yield _finding(
            (), f"{words}{times:,}, such as tokens, samples or parts of a batch; they are not compared", "note"
        )
    elif foreign and (start := _restart(items, log)):
        words = f"the log begins again after step {start:,}, as after a resume, and counts from there"
        yield _finding([step for step in steps if step <= start], words, "note")
    else:
        yield from (*beyond, *found)


def _values_compared(items: Sequence[CheckpointSummary], log: "LogTable") -> list[Finding]:
    return [*_rates(items, log), *_losses(items, log)]


def _times(steps: Sequence[int], log: "LogTable") -> int:
    """Return how many steps of the one are a step of the other, by where names and log end; 0 if they count alike.

    Names with digits too many are no samples or tokens: batches of 10, 100 or 1,000 are rare. A log of epochs is short.
    """
    last = int(log.steps[-1])
    if not last or not steps[-1]:
        return 0
    ratio = max(steps[-1] / last, last / steps[-1])
    times = round(ratio)
    renamed = times in _DIGITS and len(log.steps) > len(steps)
    whole = times > 1 and abs(ratio - times) <= MAX_OFF_TIMES * ratio
    return times if whole and (steps[-1] < last or (math.gcd(*steps) % times == 0 and not renamed)) else 0


_DIGITS = (10, 100, 1000)


def _restart(items: Sequence[CheckpointSummary], log: "LogTable") -> int:
    """Return the step from which on the log fits the series if it counts from there; 0 if there is none."""
    steps, last = [item.step for item in items], int(log.steps[-1])
    for start in steps:
        rest = [item for item in items if item.step > start]
        if start and len(rest) >= MIN_LOGGED and 0 <= last - (steps[-1] - start) < steps[-1] - steps[-2]:
            moved = replace(log, steps=log.steps + start)
            if not any(finding.severity == "fault" for finding in _values_compared(rest, moved)):
                return start
    return 0


def _beyond_the_log(steps: Sequence[int], log: "LogTable") -> Iterator[Finding]:
    last = int(log.steps[-1])
    spacing = int(np.median(np.diff(log.steps))) if len(log.steps) > 1 else 1
    beyond = [step for step in steps if step > last + 2 * spacing]
    if not beyond or last <= 0:
        return
    times = steps[-1] / last
    words = f"{steps_text(beyond)}: beyond the end of the log, step {last:,}"
    if 2 * len(beyond) >= len(steps) and times > MIN_TIMES:
        fix = f"the series ends {times:.3g} times later: its names count something else, or the log is another run's"
        # A log that was cut short has a checkpoint in what is left of it.
        yield _finding(beyond, f"{words}; {fix}", "fault" if any(0 < step <= last for step in steps) else "note")
    else:
        yield _finding(beyond, f"{words}, which was cut short, or not written any more", "note")


def _pairs(held: dict[int, float], log: "LogTable", column: str) -> _Pairs:
    """Return what checkpoints hold, and what was logged at their steps, at most 1 off, and in two rows around."""
    values = log.values.get(column, np.empty(0))
    known = np.isfinite(values)
    at, values = log.steps[known], values[known]
    low, high = values - _half_a_digit(values), values + _half_a_digit(values)
    rows = []
    for step, value in held.items():
        place = int(np.searchsorted(at, step))
        near = np.arange(max(0, place - 2), min(len(at), place + 3))
        nearest = near[np.abs(at[near] - step).argmin()] if len(near) else 0
        if len(near) and math.isfinite(value) and abs(int(at[nearest]) - step) <= min(step, 1):
            rows.append((step, value, low[near].min(), values[nearest], high[near].max()))
    columns = np.array(rows, np.float64).reshape(-1, 5).T
    return _Pairs(columns[0].astype(np.int64), *columns[1:])


def _half_a_digit(values: Vector) -> Vector:
    """Return half a unit of the last decimal of each value, by the decimals or the digits that suffice for all."""
    exponents = np.floor(np.log10(np.abs(values), out=np.zeros(len(values)), where=values != 0))
    found = np.zeros(len(values))
    for ones in (np.zeros(len(values)), exponents):
        for places in range(13):
            unit = 10.0 ** (ones - places)
            if np.allclose(np.round(values / unit) * unit, values, rtol=1e-12, atol=0):
                found = np.maximum(found, unit / 2)
                break
    return found


def _rates(items: Sequence[CheckpointSummary], log: "LogTable") -> Iterator[Finding]:
    # A scheduler may have set the next step's; of the last rows that is not known.
    logged, of = _held(items, "learning_rate")
    stated = {step: [rate] for step, rate in logged.items()}
    held = stated | {item.step: item.state.rates for item in items if item.state and item.state.rates}
    held = {step: rates for step, rates in held.items() if step < log.steps[-1] - 1}
    groups = max(map(len, held.values()), default=0)
    every = [
        _pairs({step: rates[min(k, len(rates) - 1)] for step, rates in held.items()}, log, "learning_rate")
        for k in range(groups)
    ]
    if not groups or len(every[0].steps) < MIN_LOGGED:
        return
    pairs = every[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = pairs.held / pairs.logged
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    power = round(math.log10(float(np.median(ratio)))) if len(ratio) else 0
    unit = 10.0**power if abs(power) >= MIN_UNIT else 1.0
    fits = max((_fits_any(every, 1.0), _fits_any(every, unit)), key=np.count_nonzero)
    if fits.all():
        return
    words = pairs.words(int(np.flatnonzero(~fits)[-1]), "the checkpoint holds")
    wrong = sorted({of.get(step, step) for step in pairs.where(~fits)})
    if 2 * fits.sum() >= len(fits):
        yield _finding(wrong, f"{steps_text(wrong)}: not the learning rate of the log; {words}")
        return
    kept = len(ratio) > 0 and float(np.ptp(np.log(ratio))) < 10 * LOG_TOLERANCE
    several = len({p.held[-1] for p in every}) > 1
    # As Prodigy and its kin have it, or the factor of a schedule.
    factor = bool((pairs.held == 1).all()) or abs(np.nanmax(log.values["learning_rate"]) - 1) < 0.02
    words = f"the learning rates of the log are not those of the checkpoints: {words}; the log may be another run's"
    yield _finding(wrong, words, "note" if factor or (kept and several) else "fault")


def _fits_any(every: Sequence[_Pairs], unit: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where the learning rate of any group is the log's, in some unit."""
    room = LOG_TOLERANCE * unit * (10 * np.abs(every[0].high) + np.abs(every[0].high).max()) + 1e-12
    within = [(p.held >= unit * p.low - room) & (p.held <= unit * p.high + room) for p in every]
    return np.asarray(np.any(within, axis=0))


def _losses(items: Sequence[CheckpointSummary], log: "LogTable") -> Iterator[Finding]:
    """Compare the losses that checkpoints hold with every loss of the log; one that is there shows whose log it is."""
    names = ("loss", "validation_loss", *log.further_targets)
    columns = {name: ByStep(log.steps, log.values.get(name, np.full(len(log.steps), np.nan))) for name in names}
    lowest = ByStep(log.steps, np.fmin.accumulate(columns["validation_loss"].values))
    foreign, unlike = False, ""
    for name in ("loss", "validation_loss"):
        held, of = _held(items, name)
        steps, own = np.array([*held], np.int64), np.array([*held.values()])
        logged, exact = max(
            (_compared(own, column, steps) for column in (*columns.values(), lowest)),
            key=lambda pair: int(pair[1].sum()),
        )
        if exact.sum() >= max(MIN_LOGGED - 1, np.isfinite(logged).sum() / 2):
            far = ~exact & (np.abs(own - logged) > 20 * LOG_TOLERANCE * np.abs(logged))
            if far.any():
                wrong = sorted({of[int(step)] for step in steps[far]})
                words = f"at step {steps[far][0]} the checkpoint holds {own[far][0]:.4g}, the log {logged[far][0]:.4g}"
                yield _finding(wrong, f"{steps_text(wrong)}: not the loss of the log; {words}")
            return
        logged = columns[name].at(steps)
        known = np.isfinite(logged)
        if known.sum() >= MIN_LOGGED:
            unrelated, surely = _is_unrelated(steps[known], own[known], columns[name])
            foreign |= surely
            if unrelated:
                unlike = unlike or f"at step {steps[known][0]} {own[known][0]:.4g}, not {logged[known][0]:.4g}"
    if unlike:
        cause = "the log may be another run's" if foreign else "they may be smoothed, of other data, or another run's"
        words = f"the losses of the log are not those of the checkpoints, {unlike}; {cause}"
        yield _finding((), words, "fault" if foreign else "note")


_LAGS = (0, -1, 1, -2, 2)
"""Steps by which a trainer may count a loss earlier or later than a checkpoint."""


def _held(items: Sequence[CheckpointSummary], name: str) -> tuple[dict[int, float], dict[int, int]]:
    """Return what checkpoints hold or say to have logged, by its step, and the checkpoint that it is from."""
    held: dict[int, float] = {}
    of: dict[int, int] = {}
    lowest = math.inf
    for state, step in ((item.state, item.step) for item in items if item.state):
        found = {step - back: value for back, value in state.logged.get(name, ()) if back <= step}
        if name in state.losses:
            found = {step: state.losses[name]}
        elif name == "validation_loss" and (low := state.losses.get("lowest", math.inf)) != lowest:
            found, lowest = {step: low}, low  # a new one is of this step
        held |= found
        of |= dict.fromkeys(found, step)
    return dict(sorted(held.items())), of


def _compared(own: Vector, column: ByStep, steps: Steps) -> tuple[Vector, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return what was logged at the steps, and where what checkpoints hold was logged about then, to the last digit."""
    exact = np.zeros(len(own), np.bool_)
    for lag in _LAGS:
        logged = column.at(steps + lag)
        known = np.isfinite(logged)
        room = LOG_TOLERANCE * np.abs(logged[known]) + _half_a_digit(logged[known])
        exact[known] |= np.abs(own - logged)[known] <= room
    return column.at(steps), exact


def _is_unrelated(steps: Steps, own: Vector, column: ByStep) -> tuple[bool, bool]:
    """Return whether losses that differ are of other batches, as it seems, and whether surely so, of another run.

    Of what differs from the rows nearby, the noisier is the other plus noise of its own if the one is a part, a mean or
    a multiple of the other: the larger the noise, the lower the correlation. In two runs it is 0 and the noise alike.
    """
    known = np.isfinite(column.values)
    at, logged = column.steps[known], column.values[known]
    most = 5 if len(at) > 10 * len(steps) else 2  # rows on either side; of few, the losses fall from one to the next
    both = []
    for place, value in zip(np.searchsorted(at, steps).tolist(), own, strict=True):
        if width := min(place, len(at) - 1 - place, most):
            around = (logged[place - width : place + width + 1].sum() - logged[place]) / (2 * width)
            both.append((value - around, logged[place] - around))
    squares = np.cov(np.transpose(both)) if len(both) > 1 else np.zeros((2, 2))
    smooth, noisy = sorted(np.diag(squares))
    if not smooth:
        return True, False
    correlation = float(squares[0, 1]) / math.sqrt(smooth * noisy)
    is_kind = noisy < MAX_NOISE_RATIO * smooth
    is_kind = is_kind and abs(float(np.median(own)) / float(np.median(logged)) - 1) < MAX_OTHER_LEVEL
    lowest = math.sqrt(smooth / noisy) - MAX_CHANCE_FALL / math.sqrt(len(both))
    return correlation < MIN_RELATED, is_kind and correlation < lowest


_APART = ((), ("embed", "pos_embed"), ("embed", "pos_embed", "head"))
"""Roles whose tensors a logged norm may leave out."""


def _norms(items: Sequence[CheckpointSummary], log: "LogTable") -> Iterator[Finding]:
    """Find norms that are not the log's, whose definition is the one that fits most; silent if it fits under half."""
    found = []
    for apart, matrices, norm in product(_APART, (False, True), (math.hypot, lambda *norms: math.fsum(norms))):
        held = {}
        for item in items:
            chosen = {
                (tensor.content_hash if tensor.is_matrix else "") or name: tensor.norm  # a tied one counts once
                for name, tensor in item.tensors.items()
                if tensor.role not in apart and (tensor.is_matrix or not matrices)
            }
            held[item.step] = norm(*chosen.values())
        pairs = _pairs(held, log, "weight_norm")
        room = LOG_TOLERANCE * np.abs(pairs.logged)
        found.append((pairs, (pairs.held >= pairs.low - room) & (pairs.held <= pairs.high + room)))
    pairs, fits = max(found, key=lambda definition: int(definition[1].sum()))
    if len(fits) >= MIN_LOGGED and not fits.all() and 2 * fits.sum() >= len(fits):
        wrong, words = pairs.where(~fits), pairs.words(int(np.flatnonzero(~fits)[-1]), "that of the weights is")
        yield _finding(wrong, f"{steps_text(wrong)}: not the norm of the log; {words}")
