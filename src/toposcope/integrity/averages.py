"""Checkpoints that are made of others: means, interpolated ones, early ones with nearly the final weights."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from toposcope.integrity import tuning
from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import History, complete_matrices, nearby
from toposcope.typing import Vector


def averages(histories: Sequence[History]) -> list[Suspect]:
    """Find means of earlier checkpoints: the last one, or one from which the run goes on."""
    complete = complete_matrices(histories)
    count = len(complete[0].steps) if complete else 0
    if count <= tuning.MIN_AVERAGED:
        return []
    moves = np.stack([history.squared_moves + history.rounding_floor()[1:] for history in complete])
    jumps = np.median(moves[:, 1:-1] / np.maximum(moves[:, :-2], moves[:, 2:]), axis=0) > tuning.MIN_MERGE_JUMP**2
    suspects = []
    for k in [*(k + 2 for k in np.flatnonzero(jumps).tolist() if k + 2 >= tuning.MIN_AVERAGED), count - 1]:
        weights = _weights(complete, k)
        if weights is not None:
            steps = complete[0].steps[k - len(weights) : k]
            heaviest = sorted(np.argsort(-weights, kind="stable")[:3].tolist())
            parts = ", ".join(f"{weights[j]:.2g} of step {steps[j]}" for j in heaviest)
            here = int(complete[0].steps[k])
            what = f"step {here} is" if k == count - 1 else f"from step {here} on the run goes on from"
            reason = f"{what} about a mean of {1 / np.square(weights).sum():.0f} checkpoints before it, such as {parts}"
            suspects.append(Suspect((here,), [h.name for h in histories], "average", reason, "note"))
    return suspects


def _weights(histories: Sequence[History], k: int) -> Vector | None:
    """Return the weights of the checkpoints before the k-th in the mean that it is about; None if it is none."""
    columns, target = [], []
    for history in histories:
        # From any multiple of the checkpoint before, as weights that are scaled are no mean.
        size = history.scale_factors()[1][k - 1] * np.sqrt(history.squared_norms[k - 1])
        columns.append((history.values[max(0, k - tuning.MAX_STRETCH) : k - 1] - history.values[k - 1]) / size)
        target.append((history.values[k] - history.values[k - 1]) / size)
    weights, rest = nnls(np.concatenate(columns, axis=1).T, np.concatenate(target))
    weights = np.append(weights, 1 - weights.sum())
    is_mean = (
        weights[-1] >= 0 and weights.max() < tuning.MAX_WEIGHT and rest < tuning.MAX_MEAN_REST * np.sqrt(len(histories))
    )
    return np.asarray(weights) if is_mean else None


def interpolated(histories: Sequence[History]) -> list[Suspect]:
    """Find matrices that lie on the line through both neighbours to the last digit, while nearby none does."""
    layers: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for history in histories:
        if not history.is_matrix or len(history.steps) < tuning.MIN_AVERAGED:
            continue
        across, part = history.values[2:] - history.values[:-2], history.values[1:-1] - history.values[:-2]
        squares = np.square(across).sum(axis=1)
        shares = np.einsum("ij,ij->i", across, part) / np.where(squares > 0, squares, 1)
        rests = np.square(part - shares[:, None] * across).sum(axis=1)
        # Weights that only shrink or grow lie on a line, too.
        turned = squares - np.einsum("ij,ij->i", across, history.values[:-2]) ** 2 / history.squared_norms[:-2]
        floor = history.rounding_floor()[1:-1]
        for k in np.flatnonzero((rests < floor) & (shares > 0.01) & (shares < 0.99)).tolist():
            near = nearby(k, len(rests))
            if (rests[k] + floor[k]) * max(squares[near]) < tuning.MAX_OFF_LINE * turned[k] * min(rests[near]):
                before, step, after = history.steps[k : k + 3].tolist()
                layers[before, step, after].append(history.name)
    reason = "step {1} lies on the line from step {0} to step {2}, to the last digit: interpolated"
    return [Suspect((k[1],), names, "off path", reason.format(*k)) for k, names in sorted(layers.items())]


def nearly_final(histories: Sequence[History], last: int) -> list[int]:
    """Return the early steps whose weights belong to the last checkpoint, by a vote of the matrices."""
    votes: dict[int, list[bool]] = defaultdict(list)
    for history in histories:
        if history.is_matrix and history.steps[-1] == last:
            for step, near in zip(history.steps.tolist(), _belongs_to_last(history), strict=True):
                votes[step].append(near)
    return [step for step, near in sorted(votes.items()) if 2 * sum(near) > len(near)]


def _belongs_to_last(history: History) -> list[bool]:
    """Return which checkpoints are nearer to the last than many later ones are, and than to their own neighbours."""
    floor = float(history.rounding_floor()[-1])
    distances = np.sqrt(np.square(history.values - history.values[-1]).sum(axis=1) + floor / 4)
    steps = np.sqrt(history.squared_moves + floor)
    n = len(distances)
    # Of each, how many of those after it are further away; the last itself is not.
    further = np.triu(tuning.MAX_NEARNESS * distances > distances[:, None], 1).sum(axis=1)
    n_later = n - 2 - np.arange(n)
    enough = further >= np.maximum(np.minimum(3, n_later), tuning.MIN_LATER_SHARE * n_later)
    near_last: list[bool] = (enough & (n_later > 0)).tolist()
    others = history.values[[k for k in range(n - 1) if not near_last[k]]]
    for k in np.flatnonzero(near_last).tolist():
        # If another late checkpoint is nearer still, the weights are that one's.
        nearest = np.square(others - history.values[k]).sum(axis=1).min(initial=np.inf)
        near_last[k] = bool(distances[k] <= tuning.MAX_RIVAL_NEARNESS * np.sqrt(nearest + floor))
    begin = 0
    while begin < n:
        end = begin
        while end < n and near_last[end]:
            end += 1
        # A stretch must stand out at both ends.
        around = [*steps[max(0, begin - 1) : begin], *steps[end - 1 : end]]
        if end > begin and (
            tuning.MAX_NEARNESS * min(around) < distances[begin:end].max() or _is_between(history, begin, end)
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
    return there + back < tuning.MIN_BETWEEN * across
