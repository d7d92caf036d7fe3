"""Early checkpoints whose weights are nearly those of the last."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from toposcope.integrity.histories import History

MAX_NEARNESS = 0.5
"""Distance to the last checkpoint, relative to that of many later ones, and to that to its own neighbours."""
MAX_RIVAL_NEARNESS = 1.1
"""Distance to the last checkpoint, relative to that to any other; the last few may hardly differ."""
MIN_LATER_SHARE = 1 / 3
"""Share of the later checkpoints, and three at least, that must be further away; some of them may be wrong."""
MIN_DETOUR = 1.25
"""A stretch lies between its neighbours if the squared distances to them add up to less than so many times the squared
distance between them."""


def nearly_final(histories: Sequence[History], last: int) -> list[int]:
    """Return the early steps whose weights belong to the last checkpoint, by a vote of the matrices."""
    votes: dict[int, list[bool]] = defaultdict(list)
    for history in histories:
        if history.is_matrix and history.steps[-1] == last:
            for step, near in zip(history.steps.tolist(), _belongs_to_last(history), strict=True):
                votes[step].append(near)
    return [step for step, near in sorted(votes.items()) if 2 * sum(near) > len(near)]


def _belongs_to_last(history: History) -> list[bool]:
    """Return which checkpoints are nearer to the last than many later ones are, and than to their own neighbours.

    On any path the later checkpoints are nearer; about a fixed point all are equally far.
    """
    floor = float(history.rounding_floor()[-1])
    distances = np.sqrt(np.square(history.values - history.values[-1]).sum(axis=1) + floor / 4)
    steps = np.sqrt(history.squared_moves + floor)
    n = len(distances)
    # Of each, how many of those after it are further away; the last itself is not.
    further = np.triu(MAX_NEARNESS * distances > distances[:, None], 1).sum(axis=1)
    n_later = n - 2 - np.arange(n)
    enough = further >= np.maximum(np.minimum(3, n_later), MIN_LATER_SHARE * n_later)
    near_last: list[bool] = (enough & (n_later > 0)).tolist()
    others = history.values[[k for k in range(n - 1) if not near_last[k]]]
    for k in np.flatnonzero(near_last).tolist():
        # If another late checkpoint is nearer still, the weights are that one's.
        nearest = np.square(others - history.values[k]).sum(axis=1).min(initial=np.inf)
        near_last[k] = bool(distances[k] <= MAX_RIVAL_NEARNESS * np.sqrt(nearest + floor))
    begin = 0
    while begin < n:
        end = begin
        while end < n and near_last[end]:
            end += 1
        # A stretch must stand out at both ends.
        around = [*steps[max(0, begin - 1) : begin], *steps[end - 1 : end]]
        if end > begin and (
            MAX_NEARNESS * min(around) < distances[begin:end].max() or _is_between(history, begin, end)
        ):
            near_last[begin:end] = [False] * (end - begin)
        begin = end + 1
    return near_last


def _is_between(history: History, begin: int, end: int) -> bool:
    """Return whether a stretch lies between its neighbours, as noise does where the learning rate falls."""
    if begin == 0 or end == len(history.steps):
        return False
    there, back, across = (
        float(np.square(history.values[a] - history.values[b]).sum())
        for a, b in ((begin - 1, begin), (end - 1, end), (begin - 1, end))
    )
    return there + back < MIN_DETOUR * across
