"""Whether a validation loss has turned; imports no arrays, for the live page."""

from collections.abc import Iterable
from statistics import median, quantiles

from toposcope.logs import tuning

NORMAL_MAD, NORMAL_QUARTILE = 1.4826, 0.3186
"""Of a normal: one over the median of absolute deviations, and their lower quartile."""


def overfits(losses: Iterable[float]) -> bool:
    """Return whether a validation loss has risen since its lowest, by more than its noise; losses are finite."""
    values = [float(loss) for loss in losses]
    lowest = min(values)
    best = values.index(lowest)
    after = values[best + 1 :]
    if len(after) < tuning.MIN_AFTER_BEST:
        # of one evaluation after the best, only a plain rise says something
        return len(values) > 2 and bool(after) and after[0] > tuning.MIN_RISE * lowest
    rise = median(after[-tuning.N_AFTER_BEST :]) - lowest
    # of a smooth curve most second differences are near 0, but for those where it turns
    bends = [abs(c - 2 * b + a) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    if len(values) < tuning.MIN_BENDS:
        elsewhere = bends[: best - 1] + bends[best:] if best else bends
        noise = median(elsewhere) * NORMAL_MAD / 6**0.5
        return rise > max(tuning.MAX_NOISE_RANGE_OF_FEW * noise, tuning.MIN_OVERFIT_OF_FEW * lowest)
    noise = quantiles(bends, method="inclusive")[0] / NORMAL_QUARTILE / 6**0.5
    return rise > max(tuning.MAX_NOISE_RANGE * noise, tuning.MIN_OVERFIT * lowest)
