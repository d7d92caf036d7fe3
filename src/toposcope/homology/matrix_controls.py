"""What persistence of matrices is compared with: random ones, the variance of weights."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_float_matrix
from toposcope.typing import Matrix

BLOCK_ENTRIES = 1 << 20  # of a matrix in float64, at a time

Ensemble = Literal["gaussian", "uniform", "orthogonal", "sparse", "heavy_tailed"]

ENSEMBLES: tuple[Ensemble, ...] = get_args(Ensemble)

DENSITY = 0.1  # share of the entries of a sparse matrix that are not zero, on average
TAIL_DEGREES = 3.0
"""Degrees of freedom of Student's t: the variance is finite, the fourth moment is not.

With a finite fourth moment the largest singular values are those of a Gaussian matrix of the same variance (Bai & Yin
1988), and single entries do not matter. With 3 degrees, P(|w| > x) falls as x^-3, and the largest of k entries grows as
k^(1/3), so they do. At 2 or less the norm would have no expectation to divide by.
"""


def random_matrix(ensemble: Ensemble, shape: tuple[int, int], seed: int) -> Matrix:
    """Draw one matrix."""
    m, n = (as_count(side, "shape", 1) for side in shape)
    if ensemble not in ENSEMBLES:
        raise ToposcopeError(f"ensemble: expected one of {', '.join(ENSEMBLES)}, got {ensemble!r}")
    rng = np.random.default_rng(seed)
    make: dict[Ensemble, Callable[[], Any]] = {
        "gaussian": lambda: rng.standard_normal((m, n)),
        "uniform": lambda: rng.uniform(-1, 1, (m, n)),
        "orthogonal": lambda: _orthogonal(rng, m, n),
        "sparse": lambda: np.where(rng.random((m, n)) < DENSITY, rng.standard_normal((m, n)), 0.0),
        "heavy_tailed": lambda: rng.standard_t(TAIL_DEGREES, (m, n)),
    }
    W: Matrix = make[ensemble]()
    return W


def _orthogonal(rng: np.random.Generator, m: int, n: int) -> Matrix:
    Q, R = np.linalg.qr(rng.standard_normal((max(m, n), min(m, n))))
    Q *= np.where(np.diagonal(R) < 0, -1.0, 1.0)
    return Q if m >= n else np.ascontiguousarray(Q.T)


def weight_variance(matrices: Sequence[ArrayLike | Any], *, names: Sequence[str] | None = None) -> float:
    """Return the variance (population) of ``|w| / max|w|`` over all weights of some matrices; 0 if all are zero.

    Neural persistence follows it, by Girrbach et al. 2023 (arXiv:2307.10865).
    """
    names = names or [f"matrices[{k}]" for k in range(len(matrices))]
    found = [as_float_matrix(W, name) for W, name in zip(matrices, names, strict=True)]
    read = [W.T if W.flags.f_contiguous else W for W in found]
    largest = max((float(max(-W.min(), W.max())) for W in read), default=0.0)
    if largest == 0:
        return 0.0
    count = sum(W.size for W in read)
    mean = sum(float(A.sum()) for W in read for A in _blocks(W, largest)) / count
    return sum(float(np.square(A - mean).sum()) for W in read for A in _blocks(W, largest)) / count


def _blocks(tall: Any, largest: float) -> Iterator[Matrix]:
    """Yield |W| / max|W| in float64, a few rows at a time."""
    step = max(1, BLOCK_ENTRIES // tall.shape[1])
    for start in range(0, len(tall), step):
        yield np.abs(tall[start : start + step].astype(np.float64)) / largest
