"""Steps from which on a series goes on with another branch of its run, forked at an earlier checkpoint.

The movement to the first checkpoint of the other branch is far larger than those around it, and it takes back what the
first branch had moved since the fork. A kick, by a learning rate too high, is as large and takes nothing back; it makes
the weights larger by as much as it moves them. Batches of wrong data take back what was learned since the beginning.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import History
from toposcope.integrity.summary import CheckpointSummary
from toposcope.typing import Vector

MIN_JUMP = 3.0
"""Distance to the checkpoint before, over those of the intervals before and after; without kicks, trainings reach 2."""
MIN_REVERSAL = 0.2
"""Cosine of the angle between the movement and the way back to the fork; kicks reach 0.1."""
MIN_REVERSAL_GAIN = 0.05
"""How much larger than for the way back to the first checkpoint the cosine must be."""
MIN_BEHIND = 3
"""Checkpoints before the fork; what is learned first is what batches of wrong data take back first."""
MAX_GROWTH = 2.0
"""Growth of the squared norm beyond that of the intervals beside it, over the squared distance; 1 for a kick."""
MAX_RETURN = 0.12
"""Share of the movement that the next checkpoints take back: they do after batches of wrong data."""
LATER = 3
"""Checkpoints later at which that is judged."""


class _Movement(NamedTuple):
    """The movement of one matrix to some checkpoint; see the constants above."""

    jump: float
    growth: float
    returned: float
    reversals: Vector


def branched(histories: Sequence[History], summaries: Sequence[CheckpointSummary]) -> list[Suspect]:
    """Find steps from which on most matrices are those of another branch."""
    matrices = [history for history in histories if history.is_matrix]
    count = max((len(history.steps) for history in matrices), default=0)
    complete = [history for history in matrices if len(history.steps) == count]
    if 2 * len(complete) <= len(matrices):
        return []
    by_step = {item.step: item for item in summaries}
    movements: dict[int, list[_Movement]] = defaultdict(list)
    candidates = _candidates(complete, count)
    for history in complete if candidates else []:
        held = [by_step[step].tensors[history.name] for step in history.steps.tolist()]
        scale = history.values.shape[1] / float(np.prod(held[0].shape))
        squares = np.array([tensor.norm**2 for tensor in held]) * scale
        for k in candidates:
            if (movement := _movement(history.values, squares, k)) is not None:
                movements[k].append(movement)
    suspects = []
    for k, of_matrices in movements.items():
        jump, growth, returned = (float(np.median(of)) for of in list(zip(*of_matrices, strict=True))[:3])
        reversals = np.median([movement.reversals for movement in of_matrices], axis=0)
        fork = int(reversals.argmax())
        if (
            jump > MIN_JUMP
            and abs(growth) < MAX_GROWTH
            and returned < MAX_RETURN
            and fork >= MIN_BEHIND
            and reversals[fork] > max(MIN_REVERSAL, float(reversals[0]) + MIN_REVERSAL_GAIN)
        ):
            step, forked = int(complete[0].steps[k]), int(complete[0].steps[fork])
            reason = (
                f"from step {step} on the weights are those of another branch of the run, forked at about step "
                f"{forked}: they jump {jump:.2g} times further than beside it, and back; take the steps of one branch"
            )
            suspects.append(Suspect((step,), [h.name for h in histories], len(histories), "break", reason))
    return suspects


def _candidates(histories: Sequence[History], count: int) -> list[int]:
    """Return the places of checkpoints to which the median matrix jumps about far enough, where all else is looked at.

    Sums in another order differ in the last digits, for which the threshold is a little lower here.
    """
    moves = [history.squared_moves for history in histories]
    places = []
    for k in range(MIN_BEHIND + 2, count - 1):
        of_matrices = [
            np.sqrt(move[k - 1] / beside) for move in moves if move[k - 1] and (beside := max(move[k - 2], move[k]))
        ]
        if of_matrices and np.median(of_matrices) > 0.999 * MIN_JUMP:
            places.append(k)
    return places


def _movement(values: np.ndarray, squares: Vector, k: int) -> _Movement | None:
    """Return how a matrix moves to its k-th checkpoint; None if it does not."""
    move = values[k] - values[k - 1]
    squared = float(move @ move)
    beside = max(float(np.square(values[j] - values[j - 1]).sum()) for j in (k - 1, k + 1))
    if not squared or not beside:
        return None
    usual = (squares[k - 1] - squares[k - 2] + squares[k + 1] - squares[k]) / 2
    later = values[min(len(values) - 1, k + LATER)] - values[k]
    ways = values[k - 1] - values[: k - 1]
    lengths = np.sqrt(np.square(ways).sum(axis=1))
    reversals = -np.divide(ways @ move, lengths, out=np.zeros(len(ways)), where=lengths > 0) / np.sqrt(squared)
    return _Movement(
        float(np.sqrt(squared / beside)),
        float(squares[k] - squares[k - 1] - usual) / squared,
        -float(move @ later) / squared,
        reversals,
    )
