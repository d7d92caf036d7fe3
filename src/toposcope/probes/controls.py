"""Plain quantities of the weights, which topology has to beat (METHODS 5)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.homology.arrays import as_float_matrix
from toposcope.probes.probe import Failure, Measurement, Need, Probe, Subject, each_layer

LEAST_TAIL = 10
"""Fewest eigenvalues a power law is fitted to."""

Matrix = NDArray[np.float64]


class ControlsProbe(Probe, frozen=True, tag="controls"):
    """Norms, spectrum and distance travelled.

    Of each layer: ``frobenius_norm``, ``spectral_norm``, ``stable_rank``, ``max_abs``, ``mean``, ``std``, ``norm_p1``
    and ``norm_p4`` (entry-wise), ``singular_entropy`` (nats, of sigma / sum sigma), ``alpha`` (exponent of the
    eigenvalue density of W'W, Clauset, Shalizi & Newman 2009; absent below 10 eigenvalues), ``distance_first`` and
    ``distance_previous`` (L2), ``cosine_first`` and ``cosine_previous``; the last two pairs are absent where there is
    no such checkpoint.

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
                if layer.name in others and others[layer.name].shape == layer.shape:
                    statistics |= _travelled(W, _matrix(others[layer.name]), name)
            flag = "" if statistics["max_abs"] else "degenerate"
            return Measurement(layer.name, layer.role, statistics, flag=flag)

        yield from each_layer(subject, measure_layer, _network)


def weight_statistics(W: Matrix) -> dict[str, float]:
    """Return the statistics of one matrix alone."""
    magnitude = np.abs(W)
    largest = float(magnitude.max())
    # Divided by a power of two, which changes no digit, the squares and fourth powers stay in range.
    unit = float(np.ldexp(1.0, int(np.frexp(largest)[1])))
    sigma = np.linalg.svd(W / unit, compute_uv=False).astype(np.float64)
    statistics = {
        "frobenius_norm": float(np.linalg.norm(W / unit) * unit),
        "spectral_norm": float(sigma[0] * unit),
        "max_abs": largest,
        "mean": float(W.mean()),
        "std": float(W.std()),
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
        if excess <= 0:
            continue
        alpha = 1 + k / excess
        survival = np.exp((1 - alpha) * (logs[:k] - logs[k - 1]))
        ranks = np.arange(1, k + 1) / k
        distance = float(np.maximum(np.abs(survival - ranks), np.abs(survival - ranks + 1 / k)).max())
        if best is None or distance < best[0]:
            best = (distance, float(alpha))
    return None if best is None else best[1]


def _travelled(W: Matrix, other: Matrix, name: str) -> dict[str, float]:
    """Distance and angle from an earlier checkpoint; the angle is absent where either is zero."""
    result = {f"distance_{name}": float(np.linalg.norm(W - other))}
    norms = float(np.linalg.norm(W) * np.linalg.norm(other))
    if norms > 0:
        result[f"cosine_{name}"] = float(np.clip((W * other).sum() / norms, -1, 1))
    return result


def _network(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    combine: dict[str, Callable[[list[float]], Any]] = {
        **dict.fromkeys(("frobenius_norm", "distance_first", "distance_previous"), np.linalg.norm),
        **dict.fromkeys(("spectral_norm", "max_abs"), np.max),
        "norm_p1": np.sum,
        "norm_p4": lambda values: np.linalg.norm(values, 4),
    }
    names = sorted({name for row in rows for name in row})
    return {n: float(combine.get(n, np.mean)([row[n] for row in rows if n in row])) for n in names}


def _matrix(layer: Layer) -> Matrix:
    return as_float_matrix(layer.read(), f"layer {layer.name}").astype(np.float64)
