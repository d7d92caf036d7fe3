"""Steps from which on matrices are others: replaced or scaled ones, or all of another branch of the run."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.integrity import tuning
from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import History, all_places, complete_matrices, convincing, nearby
from toposcope.typing import Indices, Matrix, Vector

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
        for k in np.flatnonzero((loss > tuning.MIN_LOSS) | (moves[history.name] > tuning.MIN_OWN_LEAP)).tolist():
            before, step = int(history.steps[k]), int(history.steps[k + 1])
            own_move = of_interval[before, step][history.name][1]
            others = [v for name, v in of_interval[before, step].items() if name != history.name]
            if not convincing(_evidence(history, k), all_places(matrices)):
                continue
            if (
                k > 0
                and own_move > 1
                and loss[k] > tuning.MIN_LOSS
                and _stands_out(history, loss, k)
                and _is_alone(float(loss[k]), others)
            ):
                how = _how(history, k)
                if how != FRESH or _keeps_its_past(history, k):
                    found[step][history.name] = how
                    continue
            shared = float(np.quantile([move for _, move in others], 0.5, method="lower")) if others else np.inf
            if 1 < k < n - 2 and own_move > tuning.MIN_OWN_LEAP * max(1.0, shared) and shared < tuning.MAX_SHARED_LEAP:
                found[step][history.name] = "it moves far more than in any interval nearby"
    suspects = []
    for step, hows in sorted(found.items()):
        since = f"at step {step}" if step == last else f"from step {step} on"
        reason = f"{since} {', '.join(sorted(set(hows.values())))}, while other matrices go on; fetch or save it again"
        suspects.append(Suspect((step,), list(hows), "off path" if step == last else "break", reason))
    return suspects


def _evidence(history: History, k: int) -> float:
    """Return the evidence of a matrix that it moves further in the k-th interval than it does nearby."""
    places = range(max(0, k - tuning.NEARBY), min(len(history.steps), k + 2 + tuning.NEARBY))

    def ratio(values: Matrix, floor: float) -> float:
        squares = np.square(np.diff(values, axis=0)).sum(axis=1) + floor
        return float(np.sqrt(squares[k - places[0]] / np.delete(squares, k - places[0]).max()))

    return history.evidence(places, {k}, ratio)


def _losses(history: History) -> Vector:
    """Return how much of the correlation with the checkpoint before is lost, on a logarithmic scale."""
    norms = np.sqrt(history.squared_norms)
    growth = np.abs(np.log(norms[1:] / norms[:-1]))
    return np.asarray(-np.log(np.clip(history.correlations(), tuning.MIN_CORRELATION, 1)) - growth)


def _relative_moves(history: History) -> Vector:
    """Return the distance that each interval covers, in units of the largest nearby."""
    distances = np.sqrt(history.squared_moves + history.rounding_floor()[1:])
    # Before the first and behind the last one stands nothing, which is never the largest.
    windows = sliding_window_view(np.pad(distances, tuning.NEARBY), 2 * tuning.NEARBY + 1)
    adjacent = np.delete(windows, tuning.NEARBY, axis=1)
    return np.asarray(distances / adjacent.max(axis=1))


def _is_alone(loss: float, others: Sequence[tuple[float, float]]) -> bool:
    if not others:
        return True
    their_loss, their_move = np.quantile(others, 0.5, axis=0, method="lower")
    return bool(loss > tuning.MIN_ALONE * max(0.0, float(their_loss)) and their_move < tuning.MAX_SHARED_MOVE)


def _keeps_its_past(history: History, k: int) -> bool:
    correlations = history.correlations()
    return bool((correlations[nearby(k, len(correlations))] ** 2 >= tuning.MIN_KEPT).all())


def _stands_out(history: History, losses: Vector, k: int) -> bool:
    """Return whether the loss in one interval is out of proportion to those nearby."""
    near = nearby(k, len(losses))
    elapsed = np.diff(history.steps)
    usual = float(np.median(losses[near] / elapsed[near])) * float(elapsed[k])
    return bool(losses[k] > max(tuning.MIN_SPEED_UP * usual, tuning.MIN_SPEED_UP_OF_ALL * float(losses[near].max())))


def _how(history: History, k: int) -> str:
    before, after = history.tensors[[k, k + 1]]
    a, b = before.values().astype(np.float64), after.values().astype(np.float64)
    cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    if cosine < -0.5:
        return "it has the opposite sign"
    places, places_now = (
        [tuple(map(int, np.unravel_index(int(p), t.shape))) for p in t.largest_positions()] for t in (before, after)
    )
    if len(set(before.shape)) == 1 and len({p[::-1] for p in places} & set(places_now)) >= tuning.MIN_IN_PLACE:
        return "it is transposed"
    rows, columns = (
        (Counter(p[axis] for p in places) & Counter(p[axis] for p in places_now)).total() for axis in (0, 1)
    )
    largest, now = np.abs(before.largest_values()), np.abs(after.largest_values())
    change = float(np.abs(now / largest - 1).max()) if len(now) == len(largest) else math.inf
    change = max(change, abs(after.norm / before.norm - 1))
    if max(rows, columns) > tuning.MIN_IN_PLACE and rows != columns and change < 2 * tuning.MAX_SAME_CHANGE:
        return f"its {'rows' if columns > rows else 'columns'} are in another order"
    if change < tuning.MAX_SAME_CHANGE:
        return "it has the same values in other places"
    return FRESH


def rescaled(histories: Sequence[History]) -> list[Suspect]:
    """Find single matrices whose norm leaps at some step and stays."""
    excess: dict[int, dict[str, float]] = defaultdict(dict)
    factors: dict[tuple[int, str], float] = {}
    for history in histories:
        if not history.is_matrix:
            continue
        norms = np.log([tensor.norm for tensor in history.tensors])
        factor, rest = history.scale_factors()
        rest = rest / np.maximum(factor, 1.0)  # scaled too
        growth = np.diff(norms)
        by_sketch = np.log(np.maximum(factor, 1e-3))
        usual, of_norm = _excess(growth, history.rounding)
        least = np.minimum(of_norm, _excess(by_sketch, history.rounding)[1])
        moved = (rest < tuning.MAX_SCALED_REST * _excess(rest, history.rounding)[0]) & (
            np.abs(growth - usual) > tuning.MIN_GROWTH
        )
        for step, value in zip(history.steps[2:-1].tolist(), least[1:-1].tolist(), strict=True):
            excess[step][history.name] = value
        for k in (np.flatnonzero(moved[1:-1]) + 1).tolist():
            factors[int(history.steps[k + 1]), history.name] = float(np.exp(growth[k] - usual[k]))
    suspects = []
    for step, of_step in sorted(excess.items()):
        for name, value in of_step.items():
            if value <= tuning.MIN_EXCESS or (step, name) not in factors:
                continue
            others = [v for other, v in of_step.items() if other != name]
            if not others or np.median(others) < tuning.MAX_SHARED_EXCESS:
                reason = (
                    f"from step {step} on it is {factors[step, name]:.3g} times what it was, while other matrices go "
                    "on; fetch or save it again"
                )
                suspects.append(Suspect((step,), [name], "break", reason))
    return suspects


def _excess(values: Vector, rounding: float) -> tuple[Vector, Vector]:
    """Return the median of those near each value, and how far it is from it, in units of the furthest of them."""
    near, low, high, last = _windows(len(values))
    # Behind the values nearby stand infinities.
    ordered = np.sort(np.append(values, np.inf)[near], axis=1)
    rows = np.arange(len(values))
    medians = (ordered[rows, low] + ordered[rows, high]) / 2
    furthest = np.maximum(medians - ordered[:, 0], ordered[rows, last] - medians)
    return medians, np.abs(values - medians) / (furthest + rounding)


@lru_cache(maxsize=8)
def _windows(count: int) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the indices of the values on either side, -1 where none, and the ranks of two medians and the last."""
    adjacent = [offset for offset in range(-tuning.NEARBY, tuning.NEARBY + 1) if offset]
    near = np.arange(count)[:, None] + adjacent
    near = np.where((near >= 0) & (near < count), near, -1)
    number = (near >= 0).sum(axis=1)
    return near, (number - 1) // 2, number // 2, number - 1


class _Movement(NamedTuple):
    """The movement of one matrix to some checkpoint; see the constants above."""

    jump: float
    growth: float
    returned: float
    reversals: Vector


def branched(histories: Sequence[History]) -> list[Suspect]:
    """Find steps from which on most matrices are those of another branch."""
    complete = complete_matrices(histories)
    count = len(complete[0].steps) if complete else 0
    movements: dict[int, list[_Movement]] = defaultdict(list)
    candidates = _candidates(complete, count)
    for history in complete if candidates else []:
        scale = history.values.shape[1] / float(np.prod(history.tensors[0].shape))
        squares = np.array([tensor.norm**2 for tensor in history.tensors]) * scale
        for k in candidates:
            if (movement := _movement(history.values, squares, k)) is not None:
                movements[k].append(movement)
    suspects = []
    for k, of_matrices in movements.items():
        jump, growth, returned = (float(np.median(of)) for of in list(zip(*of_matrices, strict=True))[:3])
        reversals = np.median([movement.reversals for movement in of_matrices], axis=0)
        fork = int(reversals.argmax())
        if (
            jump > tuning.MIN_BRANCH_JUMP
            and abs(growth) < tuning.MAX_BRANCH_GROWTH
            and returned < tuning.MAX_RETURN
            and fork >= tuning.MIN_BEFORE_FORK
            and reversals[fork] > max(tuning.MIN_REVERSAL, float(reversals[0]) + tuning.MIN_REVERSAL_GAIN)
        ):
            step, forked = int(complete[0].steps[k]), int(complete[0].steps[fork])
            reason = (
                f"from step {step} on the weights are those of another branch of the run, forked at about step "
                f"{forked}: they jump {jump:.2g} times further than in neighbouring intervals, and back; take the "
                "steps of one branch"
            )
            suspects.append(Suspect((step,), [h.name for h in histories], "break", reason))
    return suspects


def _candidates(histories: Sequence[History], count: int) -> list[int]:
    """Return the places of checkpoints to which the median matrix jumps far enough, where all else is looked at."""
    moves = [history.squared_moves for history in histories]
    places = []
    for k in range(tuning.MIN_BEFORE_FORK + 2, count - 1):
        of_matrices = [
            np.sqrt(move[k - 1] / adjacent) for move in moves if move[k - 1] and (adjacent := max(move[k - 2], move[k]))
        ]
        if of_matrices and np.median(of_matrices) > 0.999 * tuning.MIN_BRANCH_JUMP:
            places.append(k)
    return places


def _movement(values: np.ndarray, squares: Vector, k: int) -> _Movement | None:
    """Return how a matrix moves to its k-th checkpoint; None if it does not."""
    move = values[k] - values[k - 1]
    squared = float(move @ move)
    adjacent = max(float(np.square(values[j] - values[j - 1]).sum()) for j in (k - 1, k + 1))
    if not squared or not adjacent:
        return None
    usual = (squares[k - 1] - squares[k - 2] + squares[k + 1] - squares[k]) / 2
    later = values[min(len(values) - 1, k + tuning.LATER)] - values[k]
    ways = values[k - 1] - values[: k - 1]
    lengths = np.sqrt(np.square(ways).sum(axis=1))
    reversals = -np.divide(ways @ move, lengths, out=np.zeros(len(ways)), where=lengths > 0) / np.sqrt(squared)
    return _Movement(
        float(np.sqrt(squared / adjacent)),
        float(squares[k] - squares[k - 1] - usual) / squared,
        -float(move @ later) / squared,
        reversals,
    )
