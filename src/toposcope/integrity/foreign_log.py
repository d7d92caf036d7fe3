"""Whether the log next to a series is of the same run: its length, learning rates, losses and norms of the weights."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.checkpoints.formats.dtypes import MANTISSA_BITS
from toposcope.integrity import tuning
from toposcope.integrity.finding import Finding, Severity, steps_text
from toposcope.integrity.summary import CheckpointSummary, TensorSummary
from toposcope.typing import Steps, Vector

if TYPE_CHECKING:
    from toposcope.logs import LogTable


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


def _finding(steps: Sequence[int], message: str, severity: Severity = "fault", check: str = "log") -> Finding:
    return Finding(check, severity, tuple(steps), "", message)


def log_findings(summaries: Sequence[CheckpointSummary], log: "LogTable | None") -> Iterator[Finding]:
    """Find checkpoints that a log does not fit, and logs of other runs."""
    items = [item for item in summaries if not item.error]
    if log is None or not len(log.steps) or len(items) < tuning.MIN_LOGGED:
        return
    yield from _beyond_the_log([item.step for item in items], log)
    yield from _rates(items, log)
    yield from _losses(items, log)
    yield from _norms(items, log)


def _beyond_the_log(steps: Sequence[int], log: "LogTable") -> Iterator[Finding]:
    last = int(log.steps[-1])
    spacing = int(np.median(np.diff(log.steps))) if len(log.steps) > 1 else 1
    beyond = [step for step in steps if step > last + 2 * spacing]
    if not beyond or last <= 0:
        return
    rates = log.values.get("learning_rate", np.empty(0))
    rates = rates[np.isfinite(rates)]
    decayed = len(rates) > tuning.MIN_LOGGED and rates[-1] < tuning.DECAYED_RATE * rates.max()
    times = steps[-1] / last
    words = f"{steps_text(beyond)}: beyond the end of the log, step {last:,}"
    if 2 * len(beyond) >= len(steps) and (times > tuning.MIN_TIMES or (decayed and times > 1 + tuning.LOG_TOLERANCE)):
        fix = f"the series ends {times:.3g} times later: its names count something else, or the log is another run's"
        yield _finding(beyond, f"{words}; {fix}")
    else:
        yield _finding(beyond, f"{words}, which was cut short or not written any more", "note")


def _pairs(held: dict[int, float], log: "LogTable", column: str, *, exact: bool = True) -> _Pairs:
    """Return what checkpoints hold, and what was logged at, before and after their steps (`exact`: at most 1 off)."""
    values = log.values.get(column, np.empty(0))
    known = np.isfinite(values)
    at, values = log.steps[known], values[known]
    low, high = values - _half_a_digit(values), values + _half_a_digit(values)
    rows = []
    for step, value in held.items():
        place = int(np.searchsorted(at, step))
        near = np.arange(max(0, place - 1), min(len(at), place + 2))
        if not len(near) or not math.isfinite(value):
            continue
        nearest = near[np.abs(at[near] - step).argmin()]
        distance = abs(int(at[nearest]) - step)
        between = 0 < place < len(at)
        if distance == 0 and not exact and len(near) > 1:
            # What changes smoothly changes little in the step between logging and saving.
            room = 2 * float(np.max(np.abs(np.diff(values[near])) / np.diff(at[near])))
            rows.append((step, value, low[nearest] - room, values[nearest], high[nearest] + room))
            continue
        if distance == 0 or (step > 0 and distance == 1) or (between and not exact):
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
    # A scheduler may have set the next step's; of the last row that is not known.
    before_last = [item for item in items if item.step < log.steps[-1]]
    held = {item.step: item.state.rates for item in before_last if item.state and item.state.rates}
    groups = max(map(len, held.values()), default=0)
    every = [
        _pairs({step: rates[min(k, len(rates) - 1)] for step, rates in held.items()}, log, "learning_rate")
        for k in range(groups)
    ]
    if not groups or len(every[0].steps) < tuning.MIN_LOGGED:
        return
    pairs = every[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = pairs.held / pairs.logged
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    unit = 10.0 ** round(math.log10(float(np.median(ratio)))) if len(ratio) else 1.0  # such as millionths
    fits = max((_fits_any(every, 1.0), _fits_any(every, unit)), key=np.count_nonzero)
    if fits.all():
        return
    words, wrong = pairs.words(int(np.flatnonzero(~fits)[-1]), "the optimizer holds"), pairs.where(~fits)
    if 2 * fits.sum() >= len(fits):
        yield _finding(wrong, f"{steps_text(wrong)}: not the learning rate of the log; {words}")
        return
    kept = len(ratio) > 0 and float(np.ptp(np.log(ratio))) < 10 * tuning.LOG_TOLERANCE
    several = len({p.held[-1] for p in every}) > 1
    automatic = bool((pairs.held == 1).all())  # as Prodigy and its kin have it
    words = f"the learning rates of the log are not those of the optimizer: {words}; the log may be another run's"
    yield _finding(wrong, words, "note" if automatic or (kept and several) else "fault")


def _fits_any(every: Sequence[_Pairs], unit: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where the learning rate of any group is the log's, in some unit."""
    room = 10 * tuning.LOG_TOLERANCE * unit * np.abs(every[0].high) + 1e-12
    within = [(p.held >= unit * p.low - room) & (p.held <= unit * p.high + room) for p in every]
    return np.asarray(np.any(within, axis=0))


def _losses(items: Sequence[CheckpointSummary], log: "LogTable") -> Iterator[Finding]:
    for column in ("loss", "validation_loss"):
        held = {item.step: item.state.losses[column] for item in items if item.state and column in item.state.losses}
        pairs = _pairs(held, log, column)
        if len(pairs.steps) < tuning.MIN_LOGGED:
            continue
        off = np.abs(pairs.held - pairs.logged)
        within = (pairs.held >= pairs.low - 1e-9) & (pairs.held <= pairs.high + 1e-9)
        exact = off <= tuning.LOG_TOLERANCE * np.abs(pairs.logged)
        far = ~within & (off > 20 * tuning.LOG_TOLERANCE * np.abs(pairs.logged))
        words = pairs.words(int(np.argmax(off)), "the checkpoint holds")
        if 2 * exact.sum() >= len(exact):
            if wrong := pairs.where(far & ~exact):
                yield _finding(wrong, f"{steps_text(wrong)}: not the loss of the log; {words}")
            continue
        values = log.values[column][np.isfinite(log.values[column])]
        noise = float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0
        if (
            _rank_correlation(pairs.held, pairs.logged) < 0.5
            and float(np.median(off)) > tuning.MIN_LOSS_EXCESS * noise + 0.02
        ):
            where = f"not those saved in the checkpoints: {words}; the log may be another run's"
            yield _finding(pairs.where(far), f"the losses of the log are {where}")


def _rank_correlation(a: Vector, b: Vector) -> float:
    ranks = np.stack([np.argsort(np.argsort(x)) for x in (a, b)]).astype(np.float64)
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


_SETS: dict[str, Callable[[str, TensorSummary], bool]] = {
    "all parameters": lambda name, tensor: True,
    "the matrices": lambda name, tensor: tensor.is_matrix,
    "all but embeddings": lambda name, tensor: tensor.role not in ("embed", "pos_embed"),
    "all but embeddings and head": lambda name, tensor: tensor.role not in ("embed", "pos_embed", "head"),
    "the matrices but embeddings and head": lambda name, tensor: (
        tensor.is_matrix and tensor.role not in ("embed", "pos_embed", "head")
    ),
}
"""Tensors whose norm a trainer may log."""
_FORMS: dict[str, Callable[[Vector], float]] = {
    "norm": lambda norms: float(np.sqrt(np.square(norms).sum())),
    "square": lambda norms: float(np.square(norms).sum()),
    "sum": lambda norms: float(norms.sum()),
}


def _norms(items: Sequence[CheckpointSummary], log: "LogTable") -> Iterator[Finding]:
    """Compare the norm of the weights with the log's, by any definition."""
    known = [item for item in items if item.tensors and all(math.isfinite(t.norm) for t in item.tensors.values())]
    column = "weight_norm"
    candidates = []
    for (of, chosen), (form, norm), once in product(_SETS.items(), _FORMS.items(), (True, False)):
        held = {}
        for item in known:
            tensors = {name: tensor for name, tensor in item.tensors.items() if chosen(name, tensor)}
            if once:  # a tied embedding
                tensors = {tensor.content_hash or name: tensor for name, tensor in tensors.items()}
            held[item.step] = norm(np.array([tensor.norm for tensor in tensors.values()]))
        pairs = _pairs(held, log, column, exact=False)
        if len(pairs.steps) < tuning.MIN_LOGGED or not (pairs.held > 0).all() or not (pairs.low > 0).all():
            return
        coarse = max(
            (2.0 ** -MANTISSA_BITS.get(t.dtype, 23) for item in known for t in item.tensors.values()), default=0.0
        )
        # A norm may be logged a row earlier or later.
        room = (pairs.high - pairs.low) / (2 * pairs.logged) + tuning.LOG_TOLERANCE / 2 + coarse
        ratio = np.log(pairs.held / pairs.logged)
        candidates.append((of, form, pairs, room * (2 if form == "square" else 1), ratio))
    if not candidates:
        return
    for _, _, pairs, room, ratio in candidates:
        for centre in (0.0, float(np.median(ratio))):
            fits = np.abs(ratio - centre) <= room
            varies = float(np.ptp(np.log(pairs.logged))) > 5 * float(np.median(room))
            if fits.all() and (centre == 0 or (varies and abs(centre) > tuning.MIN_OTHER_SCALE)):
                return
    plain = [c for c in candidates if c[1] == "norm"]
    of, _, pairs, room, ratio = max(
        plain, key=lambda c: (int((np.abs(c[4]) <= c[3]).sum()), -float(np.median(np.abs(c[4]))))
    )
    fits = np.abs(ratio) <= room
    wrong = pairs.where(~fits)
    exchanged = np.abs(np.sort(pairs.held[~fits]) / np.sort(pairs.logged[~fits]) - 1) <= np.maximum(
        room[~fits].max(), tuning.LOG_TOLERANCE
    )
    example = int(np.argmax(np.abs(ratio)))
    step, own, logged = pairs.steps[example], pairs.held[example], pairs.logged[example]
    words = f"at step {step} the norm of {of} is {own:.5g}, by the log {logged:.5g}"
    if len(wrong) > 1 and exchanged.all():
        message = f"{steps_text(wrong)}: each has the norm that was logged for another; {words}"
        yield _finding(wrong, message, check="order")
    elif 4 * len(wrong) <= len(fits):
        yield _finding(wrong, f"{steps_text(wrong)}: not the norm of the log; {words}")
    elif float(np.median(np.abs(ratio))) < tuning.MAX_OTHER_NORM:
        whole = plain[0][4]  # of all parameters
        most = float(-whole.min())
        averaged = (whole < 0).mean() > 0.9 and -whole[-1] < tuning.MAX_LAST_OF_AVERAGED * most < tuning.MAX_AVERAGED
        cause = "the weights may be averaged" if averaged else "the log may be another run's"
        message = f"the norms of the log are not those of the weights: {words}; {cause}"
        yield _finding(wrong, message, "note" if averaged else "fault")
