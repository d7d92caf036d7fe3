"""Plain quantities of the weights, which topology has to beat (see ``docs/methods/controls.md``)."""

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Shape, Value
from toposcope.probes.row_blocks import Rows, Widening, block_length, largest_entry, pieces, unit_of
from toposcope.typing import Matrix, Vector

MAX_DIRECT_ENTRIES = 1 << 18  # of a matrix that is decomposed directly; of larger ones it is W'W or WW'
MIN_TAIL = 10  # eigenvalues a power law needs at least
MIN_SPREAD = 1e-6  # smallest mean of ln(eigenvalue / smallest of the tail) that counts as a tail; below it is rounding


class Spectrum:
    """Singular values of W / unit, from consecutive blocks of its rows."""

    def __init__(self, shape: tuple[int, ...], unit: float) -> None:
        self._shape = shape
        self._widened = Widening(unit)
        m, n = shape
        self._direct = m * n <= MAX_DIRECT_ENTRIES
        self._product = None if self._direct or m < n else _Product(n)
        self._stored: list[NDArray[Any]] = []

    def add(self, stored: NDArray[Any], rows: Matrix) -> None:
        """Add the next rows, as stored and as float64 divided by the unit."""
        if self._product is not None:
            self._product.add(rows)
        else:
            self._stored.append(stored)

    def singular_values(self) -> Vector:
        """Return the singular values, descending, once all rows are added."""
        noise = max(self._shape) * np.finfo(np.float64).eps
        if self._direct:
            W = self._widened(*self._stored)
            sigma = np.linalg.svd(W, compute_uv=False).astype(np.float64)
            return np.where(sigma > noise * sigma[0], sigma, 0.0)
        if self._product is None:
            self._product = _Product(self._shape[0])
            for columns in self._columns():
                self._product.add(columns.T)
            self._stored.clear()
        eigenvalues = self._product.eigenvalues()[::-1]
        return np.sqrt(np.where(eigenvalues > noise * eigenvalues[0], eigenvalues, 0.0))

    def _columns(self) -> Iterator[Matrix]:
        m, n = self._shape
        step = block_length(m)
        for start in range(0, n, step):
            yield self._widened(*(rows[:, start : start + step] for rows in self._stored))


class _Product:
    """The sum of B'B over matrices B of n columns; its upper triangle is never written, and takes no memory."""

    def __init__(self, n: int) -> None:
        self._sum = np.frombuffer(mmap.mmap(-1, 8 * n * n), np.float64).reshape(n, n, order="F")

    def add(self, B: Matrix) -> None:
        """Add B'B; neither rows nor columns of B are copied."""
        from scipy.linalg.blas import dsyrk

        by_rows = B.flags.c_contiguous
        self._sum = dsyrk(
            1.0, B.T if by_rows else B, trans=not by_rows, beta=1.0, c=self._sum, lower=True, overwrite_c=True
        )

    def eigenvalues(self) -> Vector:
        """Return the eigenvalues, ascending; this overwrites the sum."""
        from scipy.linalg import eigvalsh

        eigenvalues: Vector = eigvalsh(self._sum, lower=True, overwrite_a=True, check_finite=False)
        return eigenvalues


def power_law_exponent(eigenvalues: Vector) -> float | None:
    """Fit a power law to the tail by maximum likelihood (Clauset, Shalizi & Newman 2009, equations 3.1 and 3.9)."""
    tail = np.sort(eigenvalues[eigenvalues > eigenvalues.max() * 1e-14])[::-1]
    best: tuple[float, float] | None = None
    logs = np.log(tail)
    sums = np.cumsum(logs)
    for k in range(MIN_TAIL, len(tail) + 1):
        excess = sums[k - 1] - k * logs[k - 1]
        # Equal eigenvalues differ only by rounding.
        if excess <= k * MIN_SPREAD:
            continue
        alpha = 1 + k / excess
        survival = np.exp((1 - alpha) * (logs[:k] - logs[k - 1]))
        ranks = np.arange(1, k + 1) / k
        distance = float(np.maximum(np.abs(survival - ranks), np.abs(survival - ranks + 1 / k)).max())
        if best is None or distance < best[0]:
            best = (distance, float(alpha))
    return None if best is None else best[1]


class ControlsProbe(Probe, frozen=True, tag="controls"):
    """Norms, spectrum and distance travelled.

    For each layer: ``frobenius_norm``, ``spectral_norm``, ``stable_rank``, ``max_abs``, ``mean``, ``std``, ``norm_p1``
    and ``norm_p4`` (entry-wise), ``singular_entropy`` (nats, of sigma / sum sigma), ``alpha`` (exponent of the
    eigenvalue density of W'W, Clauset, Shalizi & Newman 2009; absent below 10 eigenvalues), ``distance_first`` and
    ``distance_previous`` (L2), ``cosine_first`` and ``cosine_previous``; the last two pairs are absent if there is no
    such checkpoint, or its layer is not finite.
    """

    VERSION: ClassVar[int] = 2
    KIND: ClassVar[Kind] = "control"
    KINDS: ClassVar[Mapping[str, Kind]] = {
        **dict.fromkeys(("frobenius_norm", "norm_p1", "norm_p4", "max_abs"), "norm"),
        **dict.fromkeys(("spectral_norm", "stable_rank", "singular_entropy", "alpha"), "spectrum"),
    }
    SCALE_FREE: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"first", "previous"})

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the spectra and a few passes."""
        return sum(1.5e-8 * m * n + 6e-11 * m * n * min(m, n) for m, n in shapes.values())

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        others = {"first": subject.first.get(layer.name), "previous": subject.previous.get(layer.name)}
        earlier = {name: other for name, other in others.items() if other and other.shape == layer.shape}
        statistics = layer_statistics(layer, earlier)
        flag = "" if statistics["max_abs"] else "degenerate"
        return Measurement(layer.name, layer.role, statistics, flag=flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Combine norms and distances as those of one long vector, the others by their maximum or mean."""
        names = sorted({name for row in rows for name in row})
        # The distance of some layers would be mistaken for that of all.
        names = [n for n in names if not n.startswith(("distance_", "cosine_")) or all(n in row for row in rows)]
        return {n: _COMBINE.get(n, np.mean)([row[n] for row in rows if n in row], axis=0) for n in names}


_COMBINE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("frobenius_norm", "distance_first", "distance_previous"), np.linalg.norm),
    **dict.fromkeys(("spectral_norm", "max_abs"), np.max),
    "norm_p1": np.sum,
    "norm_p4": lambda values, axis: np.linalg.norm(values, 4, axis),
}


def layer_statistics(layer: Layer, earlier: Mapping[str, Layer]) -> dict[str, float]:
    """Return the statistics of one layer, read once, and its distances from earlier checkpoints."""
    largest = cache(largest_entry)
    unit = unit_of(largest, layer)
    entries = _Entries(unit)
    spectrum = Spectrum(layer.shape, unit)
    displacements = {}
    for name, other in earlier.items():
        try:
            displacements[name] = _Displacement(other, unit, unit_of(largest, layer, other))
        except ToposcopeError:  # the row of the earlier checkpoint has the reason
            continue
    stored, widened = Rows(layer), Widening(unit)
    for start, stop in stored.blocks():
        rows = stored.read(start, stop)
        W = widened(rows)
        entries.add(W)
        spectrum.add(rows, W)
        for name in list(displacements):
            try:
                displacements[name].add(W, start, stop)
            except ToposcopeError:  # as above
                del displacements[name]
    statistics = entries.statistics() | _spectral_statistics(spectrum.singular_values(), unit)
    for name, displacement in displacements.items():
        statistics |= displacement.statistics(name)
    return statistics


class _Entries:
    """Sums over the entries of W / unit, a few at a time."""

    def __init__(self, unit: float) -> None:
        self._unit = unit
        self._largest = 0.0
        self._sums: list[list[float]] = []

    def add(self, W: Matrix) -> None:
        for w in pieces(W):
            size, square = np.abs(w), w * w
            total = w.sum()
            centred = w - total / len(w)
            self._largest = max(self._largest, float(size.max()))
            terms = (len(w), total, centred @ centred, size.sum(), square.sum(), square @ square)
            self._sums.append([float(term) for term in terms])

    def statistics(self) -> dict[str, float]:
        counts, totals, spreads, p1, p2, p4 = np.array(self._sums).T
        count = float(counts.sum())
        mean = math.fsum(totals) / count
        # Chan, Golub & LeVeque 1983: nothing cancels, as it does between the mean square and the squared mean.
        between = counts * (totals / counts - mean) ** 2
        return {
            "frobenius_norm": math.sqrt(math.fsum(p2)) * self._unit,
            "max_abs": self._largest * self._unit,
            "mean": mean * self._unit,
            "std": math.sqrt((math.fsum(spreads) + math.fsum(between)) / count) * self._unit,
            "norm_p1": math.fsum(p1) * self._unit,
            "norm_p4": math.fsum(p4) ** 0.25 * self._unit,
        }


class _Displacement:
    """Sums over the difference to an earlier layer, both divided by a common unit, a few entries at a time."""

    def __init__(self, earlier: Layer, unit_of_layer: float, unit: float) -> None:
        self._stored = Rows(earlier)
        self._widened = Widening(unit)
        self._unit_of_layer = unit_of_layer
        self._unit = unit
        self._sums: list[list[float]] = []

    def add(self, W: Matrix, start: int, stop: int) -> None:
        """Add rows `start` to `stop`, divided by the unit of the layer; the rows of the earlier layer are read here."""
        other = self._widened(self._stored.read(start, stop))
        for w, b in zip(pieces(W), pieces(other), strict=True):
            a = w * (self._unit_of_layer / self._unit)
            difference = a - b
            self._sums.append([float(term) for term in (difference @ difference, a @ a, b @ b, a @ b)])

    def statistics(self, name: str) -> dict[str, float]:
        """Return distance and cosine; the latter is absent where either layer is zero."""
        squared, aa, bb, ab = (math.fsum(terms) for terms in zip(*self._sums, strict=True))
        result = {f"distance_{name}": math.sqrt(squared) * self._unit}
        norms = math.sqrt(aa) * math.sqrt(bb)
        if norms > 0:
            result[f"cosine_{name}"] = max(-1.0, min(1.0, ab / norms))
        return result


def _spectral_statistics(sigma: Vector, unit: float) -> dict[str, float]:
    statistics = {"spectral_norm": float(sigma[0] * unit)}
    if sigma[0] > 0:
        share = sigma[sigma > 0] / sigma.sum()
        statistics["stable_rank"] = float((sigma**2).sum() / sigma[0] ** 2)
        statistics["singular_entropy"] = float(-(share * np.log(share)).sum())
        alpha = power_law_exponent(sigma**2)
        if alpha is not None:
            statistics["alpha"] = alpha
    return statistics
