"""Single matrices that are others from some step on: of opposite sign, permuted, transposed, or with fresh values.

A run that is kicked, by a learning rate too high or a bad batch, moves all matrices at once, and whatever is added to a
matrix makes it larger as it lowers its correlation with the checkpoint before: that is at least the ratio of the norms.
A matrix that is replaced loses the correlation and keeps its norm.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import NEARBY, History
from toposcope.integrity.summary import CheckpointSummary, TensorSummary
from toposcope.typing import Vector

MIN_LOSS = 1.0
"""Fall of the logarithm of the correlation, beyond that of the norms' ratio. Real trainings reach 0.2, made-up ones of
much noise 0.9; values that have nothing to do with those before lose more than 2."""
MIN_SPEED_UP = 6.0
"""How many times more than in the median interval nearby, per step of training."""
MIN_SPEED_UP_OF_ALL = 2.0
"""How many times more than in any interval nearby."""
MIN_ALONE = 4.0
"""How many times more than the median matrix loses in the same interval."""
MAX_SHARED_MOVE = 2.0
"""How far the median matrix may move in that interval, in units of its largest movement nearby: a kick moves all."""
MIN_OWN_LEAP = 3.0
"""Or how many times further a matrix moves than in any interval nearby, on both sides, and than the median matrix does,
while that does not move `MAX_SHARED_LEAP` times further. A part of it is replaced, or something was added to it. Real
trainings reach 1.8, where a layer is thawed."""
MAX_SHARED_LEAP = 1.5
MIN_KEPT = 0.5
"""Share of its variance (the squared correlation) that a matrix keeps in every interval nearby, where values that have
nothing to do with those before are a fault. In fast trainings small matrices soon lose their past without one."""
MIN_CORRELATION = 0.05
"""Below it, correlations are all alike: 256 independent values give 0.06."""
MIN_IN_PLACE = 4
"""Of the largest values, so many must be in the places that a permutation or a transposition puts them."""
MAX_CHANGE = 0.1
"""Relative change of the norm and of the largest values of a matrix whose values are the same in other places; twice as
much where the places show how they were permuted."""

FRESH = "it has other values, which have nothing to do with those before"


def replaced(histories: Sequence[History], summaries: Sequence[CheckpointSummary]) -> list[Suspect]:
    """Find single matrices that lose their past while the others keep theirs."""
    matrices = [history for history in histories if history.is_matrix]
    losses = {history.name: _losses(history) for history in matrices}
    of_interval: dict[tuple[int, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    moves = {history.name: _relative_moves(history) for history in matrices}
    for history in matrices:
        for k, (loss, move) in enumerate(zip(losses[history.name], moves[history.name], strict=True)):
            of_interval[int(history.steps[k]), int(history.steps[k + 1])][history.name] = float(loss), float(move)
    by_step = {item.step: item for item in summaries}
    found: dict[int, dict[str, str]] = defaultdict(dict)
    last = max((int(history.steps[-1]) for history in matrices), default=0)
    for history in matrices:
        loss, n = losses[history.name], len(history.steps)
        for k in np.flatnonzero((loss > MIN_LOSS) | (moves[history.name] > MIN_OWN_LEAP)).tolist():
            before, step = int(history.steps[k]), int(history.steps[k + 1])
            own_move = of_interval[before, step][history.name][1]
            others = [v for name, v in of_interval[before, step].items() if name != history.name]
            if k > 0 and own_move > 1 and _stands_out(history, loss, k) and _is_alone(float(loss[k]), others):
                how = _how(by_step[before].tensors[history.name], by_step[step].tensors[history.name], history, k)
                if how != FRESH or _keeps_its_past(history, k):
                    found[step][history.name] = how
                    continue
            shared = float(np.quantile([move for _, move in others], 0.5, method="lower")) if others else np.inf
            if 1 < k < n - 2 and own_move > MIN_OWN_LEAP * max(1.0, shared) and shared < MAX_SHARED_LEAP:
                found[step][history.name] = "it moves far more than in any interval nearby"
    suspects = []
    for step, hows in sorted(found.items()):
        since = f"at step {step}" if step == last else f"from step {step} on"
        reason = f"{since} {', '.join(sorted(set(hows.values())))}, while other matrices go on; fetch or save it again"
        suspects.append(Suspect((step,), list(hows), len(histories), "off path" if step == last else "break", reason))
    return suspects


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
    beside = np.delete(windows, NEARBY, axis=1)
    return np.asarray(distances / beside.max(axis=1))


def _nearby(k: int, n: int) -> list[int]:
    return [j for j in range(max(0, k - NEARBY), min(n, k + NEARBY + 1)) if j != k]


def _is_alone(loss: float, others: Sequence[tuple[float, float]]) -> bool:
    """Return whether the other matrices go on as before in an interval in which one loses its past."""
    if not others:
        return True
    their_loss, their_move = np.quantile(others, 0.5, axis=0, method="lower")
    return bool(loss > MIN_ALONE * max(0.0, float(their_loss)) and their_move < MAX_SHARED_MOVE)


def _keeps_its_past(history: History, k: int) -> bool:
    """Return whether a matrix keeps most of its values in all other intervals nearby."""
    correlations = history.correlations()
    return bool((correlations[_nearby(k, len(correlations))] ** 2 >= MIN_KEPT).all())


def _stands_out(history: History, losses: Vector, k: int) -> bool:
    """Return whether the loss in one interval is out of proportion to those nearby."""
    near = _nearby(k, len(losses))
    elapsed = np.diff(history.steps)
    usual = float(np.median(losses[near] / elapsed[near])) * float(elapsed[k])
    return bool(losses[k] > max(MIN_SPEED_UP * usual, MIN_SPEED_UP_OF_ALL * float(losses[near].max())))


def _how(before: TensorSummary, after: TensorSummary, history: History, k: int) -> str:
    """Describe in words what was done to a matrix."""
    a, b = history.values[k], history.values[k + 1]
    cosine = float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))
    if cosine < -0.5:
        return "it has the opposite sign"
    places, places_now = (
        [tuple(map(int, np.unravel_index(int(p), t.shape))) for p in t.largest_positions()] for t in (before, after)
    )
    if len(set(before.shape)) == 1 and len({p[::-1] for p in places} & set(places_now)) >= MIN_IN_PLACE:
        return "it is transposed"
    rows, columns = (_in_common([p[axis] for p in places], [p[axis] for p in places_now]) for axis in (0, 1))
    largest, now = np.abs(before.largest_values()), np.abs(after.largest_values())
    change = float(np.abs(now / largest - 1).max()) if len(now) == len(largest) else math.inf
    change = max(change, abs(after.norm / before.norm - 1))
    if max(rows, columns) > MIN_IN_PLACE and rows != columns and change < 2 * MAX_CHANGE:
        return f"its {'rows' if columns > rows else 'columns'} are in another order"
    if change < MAX_CHANGE:
        return "it has the same values in other places"
    return FRESH


def _in_common(before: Sequence[int], after: Sequence[int]) -> int:
    return (Counter(before) & Counter(after)).total()
