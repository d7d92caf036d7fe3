"""Checkpoints that are means of others: an average at the end, a merge from which a run goes on, an interpolated one.

What a training moves has directions of its own; a mean lies in the plane of the checkpoints that it is made of.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import MAX_STRETCH, NEARBY, History
from toposcope.typing import Vector

MAX_REST = 0.6
"""Distance from the mean, in units of that from the multiples of the checkpoint before: 1 for a walk, 0.7 for noise."""
MAX_WEIGHT = 0.8
"""Of one checkpoint in a mean."""
MIN_JUMP = 1.5
"""How many times further than before and after it the median matrix moves where a run goes on from a mean."""
MIN_BEHIND = 4
"""Checkpoints of which a mean may be made."""
MAX_SHARE = 1e-4
"""Squared distance from the line through both neighbours, relative to that distance nearby, of an interpolated one."""


def averages(histories: Sequence[History]) -> list[Suspect]:
    """Find means of earlier checkpoints: the last one, or one from which the run goes on."""
    matrices = [history for history in histories if history.is_matrix]
    count = max((len(history.steps) for history in matrices), default=0)
    complete = [history for history in matrices if len(history.steps) == count]
    if 2 * len(complete) <= len(matrices) or count <= MIN_BEHIND:
        return []
    moves = np.stack([history.squared_moves + history.rounding_floor()[1:] for history in complete])
    jumps = np.median(moves[:, 1:-1] / np.maximum(moves[:, :-2], moves[:, 2:]), axis=0) > MIN_JUMP**2
    suspects = []
    for k in [*(k + 2 for k in np.flatnonzero(jumps).tolist() if k + 2 >= MIN_BEHIND), count - 1]:
        weights = _weights(complete, k)
        if weights is not None:
            steps = complete[0].steps[k - len(weights) : k]
            heaviest = sorted(np.argsort(-weights, kind="stable")[:3].tolist())
            parts = ", ".join(f"{weights[j]:.2g} of step {steps[j]}" for j in heaviest)
            here = int(complete[0].steps[k])
            what = f"step {here} is" if k == count - 1 else f"from step {here} on the run goes on from"
            reason = f"{what} about a mean of {1 / np.square(weights).sum():.0f} checkpoints before it, such as {parts}"
            suspects.append(Suspect((here,), [h.name for h in histories], len(histories), "average", reason, "note"))
    return suspects


def _weights(histories: Sequence[History], k: int) -> Vector | None:
    """Return the weights of the checkpoints before the k-th in the mean that it is about; None if it is none."""
    columns, target = [], []
    for history in histories:
        # From any multiple of the checkpoint before, as weights that are scaled are no mean.
        size = history.scale_factors()[1][k - 1] * np.sqrt(history.squared_norms[k - 1])
        columns.append((history.values[max(0, k - MAX_STRETCH) : k - 1] - history.values[k - 1]) / size)
        target.append((history.values[k] - history.values[k - 1]) / size)
    weights, rest = nnls(np.concatenate(columns, axis=1).T, np.concatenate(target))
    weights = np.append(weights, 1 - weights.sum())
    is_mean = weights[-1] >= 0 and weights.max() < MAX_WEIGHT and rest < MAX_REST * np.sqrt(len(histories))
    return np.asarray(weights) if is_mean else None


def interpolated(histories: Sequence[History]) -> list[Suspect]:
    """Find matrices that lie on the line through both neighbours to the last digit, while nearby none does."""
    layers: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for history in histories:
        if not history.is_matrix or len(history.steps) < MIN_BEHIND:
            continue
        across, part = history.values[2:] - history.values[:-2], history.values[1:-1] - history.values[:-2]
        squares = np.square(across).sum(axis=1)
        shares = np.einsum("ij,ij->i", across, part) / np.where(squares > 0, squares, 1)
        rests = np.square(part - shares[:, None] * across).sum(axis=1)
        # Weights that only shrink or grow lie on a line, too.
        turned = squares - np.einsum("ij,ij->i", across, history.values[:-2]) ** 2 / history.squared_norms[:-2]
        floor = history.rounding_floor()[1:-1]
        for k in np.flatnonzero((rests < floor) & (shares > 0.01) & (shares < 0.99)).tolist():
            near = [j for j in range(max(0, k - NEARBY), min(len(rests), k + NEARBY + 1)) if j != k]
            if (rests[k] + floor[k]) * max(squares[near]) < MAX_SHARE * turned[k] * min(rests[near]):
                before, step, after = history.steps[k : k + 3].tolist()
                layers[before, step, after].append(history.name)
    return [
        Suspect(
            (step,),
            names,
            len(histories),
            "off path",
            f"step {step} lies on the line from step {before} to step {after}, to the last digit: interpolated",
        )
        for (before, step, after), names in sorted(layers.items())
    ]
