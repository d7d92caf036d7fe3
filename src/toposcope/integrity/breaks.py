"""Steps from which on single matrices are others: replaced, or scaled."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import MIN_AGREEING, MIN_HISTORY, NEARBY, History, all_places, convincing, nearby
from toposcope.typing import Indices, Matrix, Vector

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).

# One matrix replaced; real trainings lose 0.2, made-up ones of much noise 0.9, fresh values more than 2
MIN_LOSS = 1.0  # fall of the logarithm of the correlation, beyond that of the norms' ratio
MIN_ALONE = 4.0  # over the loss of the median matrix in the same interval
MAX_SHARED_MOVE = 2.0  # movement of the median matrix then, over its largest nearby: a kick moves all
MIN_OWN_LEAP = 3.0  # or its movement over any nearby, and over the median matrix's; a thawed layer reaches 1.8
MIN_LEAP_SHARE = 0.25  # of its norm, that it moves; step sizes of their own (Rprop) reach 0.12
MAX_SHARED_LEAP = 1.5  # what the median matrix moves then
MIN_KEPT = 0.5  # share of its variance that a matrix keeps in every interval nearby; small fast ones do not
MIN_CORRELATION = 0.05  # below it, correlations are all alike
MIN_IN_PLACE = 4  # of the largest values, in the places that a permutation or a transposition puts them
MAX_SAME_CHANGE = 0.1  # of norm and largest values of a matrix whose values are the same in other places

# A multiple, at one checkpoint or from some step on
MIN_STRETCH = 4.0  # growth beyond the median nearby, over the furthest nearby; real trainings reach 3
MIN_PURITY = 5.0  # a lasting scaling that most tensors do not share, over the rest of the movement
MAX_SCALED_REST = 1.8  # or what else the matrix moves, in units of the median nearby, where it grows by
MIN_GROWTH = 0.035  # of the logarithm of the norm, beyond the median nearby, and the others go on
MIN_FACTOR = 1e-3  # below it, factors are all alike
FRESH = "it has other values, which have nothing to do with those before"


def replaced(histories: Sequence[History]) -> list[Suspect]:
    """Find single matrices that lose their past while the others keep theirs."""
    matrices = [history for history in histories if history.is_matrix]
    losses = {history.name: _losses(history) for history in matrices}
    of_interval: dict[tuple[int, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    moves = {history.name: _relative_moves(history) for history in matrices}
    for history in matrices:
        for k, (loss, move) in enumerate(zip(losses[history.name], moves[history.name], strict=True)):
            of_interval[int(history.steps[k]), int(history.steps[k + 1])][history.name] = float(loss), float(move)
    found: dict[int, dict[str, str]] = defaultdict(dict)
    last = max((int(history.steps[-1]) for history in matrices), default=0)
    for history in matrices:
        loss, n = losses[history.name], len(history.steps)
        for k in np.flatnonzero((loss > MIN_LOSS) | (moves[history.name] > MIN_OWN_LEAP)).tolist():
            before, step = int(history.steps[k]), int(history.steps[k + 1])
            own_move = of_interval[before, step][history.name][1]
            others = [v for name, v in of_interval[before, step].items() if name != history.name]
            if not convincing(_evidence(history, k), all_places(matrices)):
                continue
            if k > 0 and own_move > 1 and loss[k] > MIN_LOSS and _is_alone(float(loss[k]), others):
                how = _how(history, k)
                if how != FRESH or _keeps_its_past(history, k):
                    found[step][history.name] = how
                    continue
            shared = float(np.quantile([move for _, move in others], 0.5, method="lower")) if others else np.inf
            is_leap = history.squared_moves[k] > MIN_LEAP_SHARE**2 * history.squared_norms[k]
            is_leap &= own_move > MIN_OWN_LEAP * max(1.0, shared) and shared < MAX_SHARED_LEAP
            if is_leap and 1 < k < n - 2:
                found[step][history.name] = "it moves far more than in any interval nearby"
    suspects = []
    for step, hows in sorted(found.items()):
        since = f"at step {step}" if step == last else f"from step {step} on"
        reason = f"{since} {', '.join(sorted(set(hows.values())))}, while other matrices go on; fetch or save it again"
        suspects.append(Suspect((step,), list(hows), "off path" if step == last else "break", reason))
    return suspects


def _evidence(history: History, k: int) -> float:
    """Return the evidence of a matrix that it moves further in the k-th interval than it does nearby."""
    places = range(max(0, k - NEARBY), min(len(history.steps), k + 2 + NEARBY))

    def ratio(values: Matrix, floor: float) -> float:
        squares = np.square(np.diff(values, axis=0)).sum(axis=1) + floor
        return float(np.sqrt(squares[k - places[0]] / np.delete(squares, k - places[0]).max()))

    return history.evidence(places, {k}, ratio)


def _losses(history: History) -> Vector:
    """Return how much of the correlation with the checkpoint before is lost, on a logarithmic scale."""
    norms = np.sqrt(history.squared_norms)
    growth = np.abs(np.log(norms[1:] / norms[:-1]))
    return np.asarray(-np.log(np.clip(history.correlations(), MIN_CORRELATION, 1)) - growth)


def _relative_moves(history: History) -> Vector:
    """Return the distance that each interval covers, in units of the largest nearby."""
    distances = np.sqrt(history.squared_moves + history.rounding_floor()[1:])
    # Before the first and behind the last one stands nothing, which is never the largest.
    windows = sliding_window_view(np.pad(distances, NEARBY), 2 * NEARBY + 1)
    adjacent = np.delete(windows, NEARBY, axis=1)
    return np.asarray(distances / adjacent.max(axis=1))


def _is_alone(loss: float, others: Sequence[tuple[float, float]]) -> bool:
    if not others:
        return True
    their_loss, their_move = np.quantile(others, 0.5, axis=0, method="lower")
    return bool(loss > MIN_ALONE * max(0.0, float(their_loss)) and their_move < MAX_SHARED_MOVE)


def _keeps_its_past(history: History, k: int) -> bool:
    correlations = history.correlations()
    return bool((correlations[nearby(k, len(correlations))] ** 2 >= MIN_KEPT).all())


def _how(history: History, k: int) -> str:
    before, after = history.tensors[[k, k + 1]]
    a, b = before.values().astype(np.float64), after.values().astype(np.float64)
    cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    if cosine < -0.5:
        return "it has the opposite sign"
    places, places_now = (
        [tuple(map(int, np.unravel_index(int(p), t.shape))) for p in t.largest_positions()] for t in (before, after)
    )
    if len(set(before.shape)) == 1 and len({p[::-1] for p in places} & set(places_now)) >= MIN_IN_PLACE:
        return "it is transposed"
    rows, columns = (
        (Counter(p[axis] for p in places) & Counter(p[axis] for p in places_now)).total() for axis in (0, 1)
    )
    largest, now = np.abs(before.largest_values()), np.abs(after.largest_values())
    change = float(np.abs(now / largest - 1).max()) if len(now) == len(largest) else math.inf
    change = max(change, abs(after.norm / before.norm - 1))
    if max(rows, columns) > MIN_IN_PLACE and rows != columns and change < 2 * MAX_SAME_CHANGE:
        return f"its {'rows' if columns > rows else 'columns'} are in another order"
    if change < MAX_SAME_CHANGE:
        return "it has the same values in other places"
    return FRESH


def scaled(histories: Sequence[History]) -> list[Suspect]:
    """Find tensors that are a multiple of what they were: at one checkpoint, or from some step on."""
    pulses: dict[int, list[str]] = defaultdict(list)
    jumps: dict[int, list[_Jump]] = defaultdict(list)
    moves_of: dict[int, dict[str, float]] = defaultdict(dict)
    for history in histories:
        if len(history.steps) < MIN_HISTORY:
            continue
        steps = history.steps[1:].tolist()
        factors, rest = history.scale_factors()
        rest = rest / np.maximum(factors, 1.0)  # scaled too
        growth = np.log(np.maximum(factors, MIN_FACTOR))
        radial = (np.abs(factors - 1) > rest) & (np.abs(growth) > MIN_STRETCH * history.rounding)
        # A learning rate that restarts higher makes all of the movement larger, decay as well as noise.
        faster = rest / _excess(rest, history.rounding, wide=2)[0]
        far = radial & (_excess(growth, history.rounding, wide=2)[1] > MIN_STRETCH * np.maximum(1, faster))
        undone = far[:-1] & far[1:] & ((factors[:-1] > 1) != (factors[1:] > 1))
        for k in np.flatnonzero(undone).tolist():
            pulses[steps[k]].append(history.name)
        if not history.is_matrix:
            continue
        moves = np.pad(np.sqrt(history.squared_moves + history.rounding_floor()[1:]), 1)
        relative_moves = moves[1:-1] / np.maximum(moves[:-2], moves[2:])
        for step, move in zip(steps, relative_moves.tolist(), strict=True):
            moves_of[step][history.name] = move
        usual, excess = _excess(growth, history.rounding)
        norms = np.log([tensor.norm for tensor in history.tensors])
        excess = np.minimum(excess, _excess(np.diff(norms), history.rounding)[1])
        grown = np.abs(growth - usual) > MIN_GROWTH
        lasting = (radial | grown) & (excess > MIN_STRETCH * np.maximum(1, faster / MAX_SCALED_REST))
        lasting &= ~(np.pad(undone, (0, 1)) | np.pad(undone, (1, 0)))
        # Alone, in the first interval or the last, a matrix may as well be one that began near zero, or goes further.
        alone = (np.abs(factors - 1) > MIN_PURITY * rest) | (grown & (faster < MAX_SCALED_REST))
        alone[[0, -1]] = False
        for k in np.flatnonzero(lasting).tolist():
            jumps[steps[k]].append(_Jump(history.name, float(np.exp(growth[k] - usual[k])), bool(alone[k])))
    return [
        *(
            Suspect((step,), names, "scaled", f"step {step} is a multiple of its neighbours")
            for step, names in sorted(pulses.items())
        ),
        *_lasting(histories, jumps, moves_of),
    ]


class _Jump(NamedTuple):
    """A matrix that is from some step on a multiple of what it was."""

    name: str
    factor: float
    alone: bool  # whether it shows so if most others do not


def _lasting(
    histories: Sequence[History], jumps: Mapping[int, Sequence[_Jump]], moves_of: Mapping[int, Mapping[str, float]]
) -> Iterator[Suspect]:
    """Find scalings that last; at the last step, or just after the first, a single checkpoint is scaled."""
    n_matrices = sum(history.is_matrix for history in histories)
    every = sorted({int(step) for history in histories for step in history.steps})
    for step, of_step in sorted(jumps.items()):
        named = list(of_step)
        if 2 * len(named) <= max(n_matrices, 2 * MIN_AGREEING - 1):
            others = {jump.name: [v for name, v in moves_of[step].items() if name != jump.name] for jump in named}
            # After a loss spike all matrices move further.
            named = [j for j in named if j.alone and np.median(others[j.name] or [0.0]) < MAX_SHARED_LEAP]
        if not named:
            continue
        names, factor = [jump.name for jump in named], float(np.median([jump.factor for jump in named]))
        if step == every[-1]:
            yield Suspect((step,), names, "scaled", f"step {step} is {factor:.3g} times its neighbour")
        elif step == every[1]:
            # A constraint on the norm that holds from the first update on does so, too.
            reason = f"step {every[0]} is {1 / factor:.3g} times its neighbour"
            yield Suspect((every[0],), names, "scaled", reason, "note")
        else:
            reason = f"from step {step} on the weights are {factor:.3g} times what they were; fetch or save it again"
            yield Suspect((step,), names, "break", reason)


def _excess(values: Vector, rounding: float, wide: int = 1) -> tuple[Vector, Vector]:
    """Return the median of those near each value, and how far it is from it, in units of the furthest of them.

    If `wide` is 2, those next to it are left out, of which one may be the other of a pair.
    """
    near, low, high, last = _windows(len(values), wide)
    # Behind the values nearby stand infinities.
    ordered = np.sort(np.append(values, np.inf)[near], axis=1)
    rows = np.arange(len(values))
    medians = (ordered[rows, low] + ordered[rows, high]) / 2
    furthest = np.maximum(medians - ordered[:, 0], ordered[rows, last] - medians)
    # In a longer interval all of what is usual is more.
    return medians, np.abs(values - medians) / (furthest + np.abs(medians) + rounding)


@lru_cache(maxsize=8)
def _windows(count: int, wide: int) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the indices of the values on either side, -1 where none, and the ranks of two medians and the last."""
    adjacent = [k for k in range(1 - NEARBY - wide, NEARBY + wide) if abs(k) >= wide]
    near = np.arange(count)[:, None] + adjacent
    near = np.where((near >= 0) & (near < count), near, -1)
    number = (near >= 0).sum(axis=1)
    return near, (number - 1) // 2, number // 2, number - 1
