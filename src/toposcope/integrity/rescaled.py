"""Single matrices that are multiplied by a factor near 1 from some step on.

The norm of a matrix grows and shrinks smoothly. Where it leaps in one interval, and what the matrix moves besides is as
in other intervals, it was scaled.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from toposcope.integrity.finding import Suspect
from toposcope.integrity.histories import NEARBY, History
from toposcope.integrity.summary import CheckpointSummary
from toposcope.typing import Vector

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
        growth = np.diff(norms)
        by_sketch = np.log(np.maximum(factor, 1e-3))
        for k in range(1, len(growth) - 1):
            near = [j for j in range(max(0, k - NEARBY), min(len(growth), k + NEARBY + 1)) if j != k]
            usual = float(np.median(growth[near]))
            step = int(history.steps[k + 1])
            excess[step][history.name] = min(_excess(v, k, near, history.rounding) for v in (growth, by_sketch))
            if rest[k] < MAX_REST * np.median(rest[near]) and abs(growth[k] - usual) > MIN_GROWTH:
                factors[step, history.name] = float(np.exp(growth[k] - usual))
    suspects = []
    for step, of_step in sorted(excess.items()):
        for name, value in of_step.items():
            others = [v for other, v in of_step.items() if other != name]
            alone = not others or np.median(others) < MAX_SHARED
            if value > MIN_EXCESS and alone and (step, name) in factors:
                reason = (
                    f"from step {step} on it is {factors[step, name]:.3g} times what it was, while other matrices go "
                    "on; fetch or save it again"
                )
                suspects.append(Suspect((step,), [name], len(histories), "break", reason))
    return suspects


def _excess(values: Vector, k: int, near: Sequence[int], rounding: float) -> float:
    """Return how far a value is from the median of those nearby, in units of the furthest of them."""
    middle = float(np.median(values[near]))
    return abs(float(values[k]) - middle) / (float(np.abs(values[near] - middle).max()) + rounding)
