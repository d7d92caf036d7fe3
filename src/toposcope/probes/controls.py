"""Plain quantities of the weights, which topology has to beat (METHODS 5)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_float_matrix
from toposcope.probes.probe import Failure, Measurement, Need, Probe, Subject, each_layer

LEAST_TAIL = 10
"""Fewest eigenvalues a power law is fitted to."""

LEAST_SPREAD = 1e-6
"""Smallest mean of ln(eigenvalue / beginning of the tail) that is taken for a spread."""

Matrix = NDArray[np.float64]


class ControlsProbe(Probe, frozen=True, tag="controls"):
    """Norms, spectrum and distance travelled.

    Of each layer: ``frobenius_norm``, ``spectral_norm``, ``stable_rank``, ``max_abs``, ``mean``, ``std``, ``norm_p1``
    and ``norm_p4`` (entry-wise), ``singular_entropy`` (nats, of sigma / sum sigma), ``alpha`` (exponent of the
    eigenvalue density of W'W, Clauset, Shalizi & Newman 2009; absent below 10 eigenvalues), ``distance_first`` and
    ``distance_previous`` (L2), ``cosine_first`` and ``cosine_previous``; the last two pairs are absent where there is
    no such checkpoint, or its layer is not finite.

    Over the network norms and distances combine as of one long vector, ``spectral_norm`` and ``max_abs`` are the
    largest, the rest are means over layers.
    """

    NEEDS: ClassVar[frozenset[Need]] = frozenset({"first", "previous"})

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""

        def measure_layer(layer: Layer) -> Measurement:
            W = _matrix(layer)
            statistics = weight_statistics(W)
            for name, others in (("first", subject.first), ("previous", subject.previous)):
                statistics |= _travelled(W, others.get(layer.name), name)
            flag = "" if statistics["max_abs"] else "degenerate"
            return Measurement(layer.name, layer.role, statistics, flag=flag)

        yield from each_layer(subject, measure_layer, _network)


def weight_statistics(W: Matrix) -> dict[str, float]:
    """Return the statistics of one matrix alone."""
    magnitude = np.abs(W)
    largest = float(magnitude.max())
    unit = _unit(W)
    sigma = np.linalg.svd(W / unit, compute_uv=False).astype(np.float64)
    statistics = {
        "frobenius_norm": float(np.linalg.norm(W / unit) * unit),
        "spectral_norm": float(sigma[0] * unit),
        "max_abs": largest,
        "mean": float(W.mean()),
        "std": float((W / unit).std() * unit),
        "norm_p1": float(magnitude.sum()),
        "norm_p4": float(((magnitude / unit) ** 4).sum() ** 0.25 * unit),
    }
    if largest > 0:
        share = sigma[sigma > 0] / sigma.sum()
        statistics["stable_rank"] = float((sigma**2).sum() / sigma[0] ** 2)
        statistics["singular_entropy"] = float(-(share * np.log(share)).sum())
        alpha = _power_law_exponent(sigma**2)
        if alpha is not None:
            statistics["alpha"] = alpha
    return statistics


def _power_law_exponent(eigenvalues: NDArray[np.float64]) -> float | None:
    """Fit the tail by maximum likelihood, its beginning chosen by the Kolmogorov-Smirnov distance.

    Clauset, Shalizi & Newman 2009, arXiv:0706.1062, equations 3.1 and 3.9.
    """
    tail = np.sort(eigenvalues[eigenvalues > eigenvalues.max() * 1e-14])[::-1]
    best: tuple[float, float] | None = None
    logs = np.log(tail)
    sums = np.cumsum(logs)
    for k in range(LEAST_TAIL, len(tail) + 1):
        excess = sums[k - 1] - k * logs[k - 1]
        # Equal eigenvalues differ by rounding, which is no tail.
        if excess <= k * LEAST_SPREAD:
            continue
        alpha = 1 + k / excess
        survival = np.exp((1 - alpha) * (logs[:k] - logs[k - 1]))
        ranks = np.arange(1, k + 1) / k
        distance = float(np.maximum(np.abs(survival - ranks), np.abs(survival - ranks + 1 / k)).max())
        if best is None or distance < best[0]:
            best = (distance, float(alpha))
    return None if best is None else best[1]


def _travelled(W: Matrix, earlier: Layer | None, name: str) -> dict[str, float]:
    """Distance and angle from an earlier checkpoint; the angle is absent where either is zero."""
    if earlier is None or earlier.shape != W.shape:
        return {}
    try:
        other = _matrix(earlier)
    except ToposcopeError:  # the earlier checkpoint's own row tells why
        return {}
    unit = max(_unit(W), _unit(other))
    a, b = W / unit, other / unit
    result = {f"distance_{name}": float(np.linalg.norm(a - b) * unit)}
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms > 0:
        result[f"cosine_{name}"] = float(np.clip((a * b).sum() / norms, -1, 1))
    return result


def _unit(W: Matrix) -> float:
    """Return a power of two near the largest entry: divided by it, which changes no digit, powers stay in range."""
    return float(np.ldexp(1.0, min(1023, int(np.frexp(np.abs(W).max())[1]))))


def _network(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    combine: dict[str, Callable[[list[float]], Any]] = {
        **dict.fromkeys(("frobenius_norm", "distance_first", "distance_previous"), np.linalg.norm),
        **dict.fromkeys(("spectral_norm", "max_abs"), np.max),
        "norm_p1": np.sum,
        "norm_p4": lambda values: np.linalg.norm(values, 4),
    }
    names = sorted({name for row in rows for name in row})
    # A distance of some layers only would pass for that of all.
    names = [n for n in names if not n.startswith(("distance_", "cosine_")) or all(n in row for row in rows)]
    return {n: float(combine.get(n, np.mean)([row[n] for row in rows if n in row])) for n in names}


def _matrix(layer: Layer) -> Matrix:
    return as_float_matrix(layer.read(), f"layer {layer.name}").astype(np.float64)
