"""What is measured of an embedding: its topology next to scale-free twins, a spectral rival and the norm."""

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import TOPOLOGY, RipsProbe, scale_free
from toposcope.probes import Kind

STATISTICS = ("H0.max", "H0.total", "H0.entropy", "H1.max", "H1.total", "H1.entropy", "H1.count")
TOPOLOGICAL = {statistic.replace(".", " "): statistic for statistic in STATISTICS}
"""Statistics of the probe by the names they have here."""
TWIN = "{} / mean distance"
N_MODES = 5
FOURIER, NORM, DISTANCE = "Fourier share", "norm", "mean distance"
_PROBE = RipsProbe(max_dimension=1)
TWINS = {name: TWIN.format(name) for name, statistic in TOPOLOGICAL.items() if _PROBE.degree(statistic)}
"""By feature; entropies and counts do not depend on the scale, and have none."""
KINDS: dict[str, Kind] = {
    **dict.fromkeys((*TOPOLOGICAL, *TWINS.values()), TOPOLOGY),
    FOURIER: "spectrum",
    **dict.fromkeys((NORM, DISTANCE), "norm"),
}
FEATURES = tuple(KINDS)


def embedding_features(points: NDArray[np.floating]) -> dict[str, float]:
    """Measure an embedding."""
    from scipy.spatial.distance import pdist  # slow to import

    points = np.asarray(points, dtype=np.float64)
    if not np.isfinite(points).all():
        return dict.fromkeys(FEATURES, np.nan)
    found = _PROBE.measure_rows(points, "embedding", "embedding").statistics
    distance = float(pdist(points).mean())
    free = scale_free(_PROBE, {name: np.array(found[name]) for name in STATISTICS}, np.array(distance))
    return {
        **{name: found[statistic] for name, statistic in TOPOLOGICAL.items()},
        **{twin: float(free[TOPOLOGICAL[name]]) for name, twin in TWINS.items()},
        FOURIER: fourier_share(points),
        NORM: float(np.linalg.norm(points)),
        DISTANCE: distance,
    }


def fourier_share(points: NDArray[np.floating], n_modes: int = N_MODES) -> float:
    """Return the share of the largest Fourier modes over Z_p in the variance of the points.

    The power of mode k, 1 <= k <= p / 2, is |sum_a x_a exp(-2 pi i k a / p)|^2, summed over dimensions. Modes k and p -
    k of real points are one mode. NaN of equal points.
    """
    points = np.asarray(points, dtype=np.float64)
    points = points - points[0]
    size = np.abs(points).max()
    if not size > 0:
        return np.nan
    power = (np.abs(np.fft.rfft(points / size, axis=0)[1:]) ** 2).sum(axis=1)
    if len(points) % 2 == 0:
        power[-1] /= 2  # the mode p / 2 is its own mirror image, which the others are counted without
    return float(np.sort(power)[::-1][:n_modes].sum() / power.sum())
