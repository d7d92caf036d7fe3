"""Single matrices that are multiplied by a factor near 1 from some step on.

The norm of a matrix grows and shrinks smoothly. Where it leaps in one interval, and what the matrix moves besides is as
in other intervals, it was scaled.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import NEARBY, History
from toposcope.integrity.summary import CheckpointSummary
from toposcope.typing import Indices, Vector

MIN_EXCESS = 4.5
"""How many times further than any nearby the growth of one interval has to be from their median, by the norms and by
the sketches; real trainings reach 3."""
MAX_SHARED = 1.5
"""The same of the median matrix in that interval."""
MAX_REST = 1.8
"""What the matrix moves besides, in units of the median nearby."""
MIN_GROWTH = 0.035
"""Of the logarithm of the norm, beyond the median nearby."""


def rescaled(histories: Sequence[History], summaries: Sequence[CheckpointSummary]) -> list[Suspect]:
    """Find single matrices whose norm leaps at some step and stays."""
    by_step = {item.step: item for item in summaries}
    excess: dict[int, dict[str, float]] = defaultdict(dict)
    factors: dict[tuple[int, str], float] = {}
    for history in histories:
        if not history.is_matrix:
            continue
        norms = np.log([by_step[step].tensors[history.name].norm for step in history.steps.tolist()])
        factor, rest = history.scale_factors()
        rest = rest / np.maximum(factor, 1.0)  # scaled too
        growth = np.diff(norms)
        by_sketch = np.log(np.maximum(factor, 1e-3))
        usual, of_norm = _excess(growth, history.rounding)
        least = np.minimum(of_norm, _excess(by_sketch, history.rounding)[1])
        moved = (rest < MAX_REST * _excess(rest, history.rounding)[0]) & (np.abs(growth - usual) > MIN_GROWTH)
        for step, value in zip(history.steps[2:-1].tolist(), least[1:-1].tolist(), strict=True):
            excess[step][history.name] = value
        for k in (np.flatnonzero(moved[1:-1]) + 1).tolist():
            factors[int(history.steps[k + 1]), history.name] = float(np.exp(growth[k] - usual[k]))
    suspects = []
    for step, of_step in sorted(excess.items()):
        for name, value in of_step.items():
            if value <= MIN_EXCESS or (step, name) not in factors:
                continue
            others = [v for other, v in of_step.items() if other != name]
            if not others or np.median(others) < MAX_SHARED:
                reason = (
                    f"from step {step} on it is {factors[step, name]:.3g} times what it was, while other matrices go "
                    "on; fetch or save it again"
                )
                suspects.append(Suspect((step,), [name], len(histories), "break", reason))
    return suspects


def _excess(values: Vector, rounding: float) -> tuple[Vector, Vector]:
    """Return the median of those near each value, and how far it is from it, in units of the furthest of them."""
    near, low, high, last = _nearby(len(values))
    # Behind the values nearby stand infinities.
    ordered = np.sort(np.append(values, np.inf)[near], axis=1)
    rows = np.arange(len(values))
    medians = (ordered[rows, low] + ordered[rows, high]) / 2
    furthest = np.maximum(medians - ordered[:, 0], ordered[rows, last] - medians)
    return medians, np.abs(values - medians) / (furthest + rounding)


@lru_cache(maxsize=8)
def _nearby(count: int) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the indices of the values on either side of each of several, -1 where there are none.

    And where, in ascending order, the two in the middle and the last of them stand.
    """
    beside = [offset for offset in range(-NEARBY, NEARBY + 1) if offset]
    near = np.arange(count)[:, None] + beside
    near = np.where((near >= 0) & (near < count), near, -1)
    number = (near >= 0).sum(axis=1)
    return near, (number - 1) // 2, number // 2, number - 1
