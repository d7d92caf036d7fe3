"""Rules that others publish for the norm of gradients or updates and for the loss, with the thresholds they publish.

Verified in the source: ZClip (arXiv:2504.02507: mean and deviation by moving averages of .97, z above 2.5, 25 values
first), OLMo-core's optimizer that skips steps (loss or gradient norm 6 deviations above the mean of the 128 before) and
Marin 32B's clipping of updates (2 deviations, 128 values), whose report says that update spikes precede loss spikes.
AdaGC (arXiv:2502.11034) bounds the gradient norm of each tensor by its moving average; its factor of 1.05 could not be
verified, nor could any source for a doubled update norm, or for warnings 14 to 18 steps ahead.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

from toposcope.extend import Matrix
from toposcope_experiments.early_warnings.detector import Alarms, rule_alarms
from toposcope_experiments.early_warnings.traces import NETWORK, Quantity

WARM_UP = 25  # values before a moving average is used (ZClip)


class PublishedRule(NamedTuple):
    """A statistic of a quantity and the threshold above which it is published to show a fault."""

    name: str
    source: str
    quantity: str
    statistic: Callable[[Matrix], Matrix]
    threshold: float


def deviations_moving(values: Matrix, memory: float = 0.97) -> Matrix:
    """Return deviations from a moving average, in moving standard deviations; 0 for the first values."""
    mean = _moving(values, memory)
    spread = np.sqrt(_moving((values - np.vstack([values[:1], mean[:-1]])) ** 2, memory))
    return _after(mean, spread, values)


def deviations_before(values: Matrix, window: int = 128) -> Matrix:
    """Return deviations from the mean of the values before, in their standard deviations; 0 for the first `window`."""
    found = np.zeros_like(values)
    if len(values) > window:
        before = np.lib.stride_tricks.sliding_window_view(values[:-1], window, axis=0)
        spread = before.std(axis=-1, ddof=1)
        found[window:] = (values[window:] - before.mean(axis=-1)) / np.maximum(spread, 1e-12)
    return found


def ratio_moving(values: Matrix, memory: float = 0.98) -> Matrix:
    """Return the ratio to the moving average of the values before; 0 for the first values."""
    return _after(np.zeros_like(values), _moving(values, memory), values)


def _moving(values: Matrix, memory: float) -> Matrix:
    started = values[:WARM_UP].mean(axis=0, keepdims=True) * memory
    return np.asarray(lfilter([1 - memory], [1, -memory], values, axis=0, zi=started)[0])


def _after(mean: Matrix, scale: Matrix, values: Matrix) -> Matrix:
    found = np.zeros_like(values)
    found[WARM_UP:] = ((values[1:] - mean[:-1]) / np.maximum(scale[:-1], 1e-12))[WARM_UP - 1 :]
    return found


GRADIENT, UPDATE, LOSS = "gradient_norm", "update_norm", "loss"
RULES = (
    PublishedRule("gradient norm, z > 2.5", "ZClip, arXiv:2504.02507", GRADIENT, deviations_moving, 2.5),
    PublishedRule("gradient norm, 6 deviations", "OLMo-core, skipped steps", GRADIENT, deviations_before, 6.0),
    PublishedRule("loss, 6 deviations", "OLMo-core, skipped steps", LOSS, deviations_before, 6.0),
    PublishedRule("update norm, 2 deviations", "Marin 32B, clipped updates", UPDATE, deviations_before, 2.0),
    PublishedRule("gradient norm, 1.05 of its mean", "AdaGC, arXiv:2502.11034", GRADIENT, ratio_moving, 1.05),
    PublishedRule("update norm doubled", "no source found", UPDATE, ratio_moving, 2.0),
)
OF_LAYERS = ("AdaGC, arXiv:2502.11034",)  # the others are of the norm of the network


def published_alarms(quantities: Mapping[str, Quantity]) -> dict[str, Alarms]:
    """Return what each rule makes of the quantities of a run; rules on others are left out."""
    found, known = {}, dict(quantities)
    if {"update_ratio", "weight_norm"} <= known.keys():
        ratio, norm = known["update_ratio"], known["weight_norm"]
        if ratio.places == norm.places and ratio.cadence == norm.cadence:
            known[UPDATE] = replace(ratio, values=ratio.values * norm.values)
    for rule in RULES:
        if (quantity := known.get(rule.quantity)) is not None and len(quantity.values) > WARM_UP:
            columns = [k for k, place in enumerate(quantity.places) if (place != NETWORK) == (rule.source in OF_LAYERS)]
            values = quantity.values[:, columns].astype(np.float64)
            finite = np.isfinite(values).all(axis=1)
            n = len(values) if finite.all() else int(np.argmin(finite))
            if columns and n > WARM_UP:
                found[rule.name] = rule_alarms(rule.statistic(values[:n]), values, quantity.cadence, rule.threshold)
    return found
