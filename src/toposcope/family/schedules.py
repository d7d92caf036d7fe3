"""Learning-rate schedules: warm-up, then one of four shapes."""

import math
from typing import Literal

ScheduleName = Literal["cosine", "constant", "linear", "wsd"]


def learning_rate(
    step: int,
    *,
    schedule: ScheduleName,
    peak: float,
    final: float,
    warmup_steps: int,
    decay_steps: int,
    total_steps: int,
) -> float:
    """Return the learning rate of one update; step 1 is the first.

    Parameters
    ----------
    step : int
        From 0 to `total_steps`; 0 gives 0 when there is a warm-up.
    schedule : str
        ``cosine``, ``linear`` and ``constant`` begin after the warm-up; ``wsd`` (warm-up, stable, decay) stays at the
        peak and falls linearly over the last `decay_steps`.
    peak, final : float
        Highest rate, and the rate at the last step of a decaying schedule.
    warmup_steps, decay_steps, total_steps : int
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    begin = total_steps - decay_steps if schedule == "wsd" else warmup_steps
    progress = min(1.0, max(0.0, (step - begin) / max(1, total_steps - begin)))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress
    return final + (peak - final) * shape
