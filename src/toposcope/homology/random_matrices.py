"""Random matrices of a given shape, from five ensembles, to compare a matrix's persistence with."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.typing import Matrix

Ensemble = Literal["gaussian", "uniform", "orthogonal", "sparse", "heavy_tailed"]

ENSEMBLES: tuple[Ensemble, ...] = get_args(Ensemble)

DENSITY = 0.1
"""Share of the entries of a sparse matrix that are not zero, on average."""

TAIL_DEGREES = 3.0
"""Degrees of freedom of Student's t: the variance is finite, the fourth moment is not.

With a finite fourth moment the largest singular values are those of a Gaussian matrix of the same variance (Bai & Yin
1988), and single entries do not matter. With 3 degrees, P(|w| > x) falls as x^-3, and the largest of k entries grows as
k^(1/3), so they do. At 2 or less the norm would have no expectation to divide by.
"""


def random_matrix(ensemble: Ensemble, shape: tuple[int, int], seed: int) -> Matrix:
    """Draw one matrix.

    Parameters
    ----------
    ensemble : str
        Independent entries but for ``orthogonal``. ``gaussian``: standard normal. ``uniform``: between -1 and 1.
        ``orthogonal``: Haar measure; of m x n the first rows or columns of a larger orthogonal matrix, so that
        the shorter side is orthonormal. ``sparse``: standard normal, 90% of the entries zero. ``heavy_tailed``:
        Student's t with 3 degrees of freedom (see `TAIL_DEGREES`).
    shape : (m, n)
    seed : int

    Returns
    -------
    ndarray, shape (m, n), float64

    Raises
    ------
    ToposcopeError
        For an unknown ensemble, or a side below 1.

    Notes
    -----
    O(mn) time, of ``orthogonal`` O(mn min(m, n)): the QR decomposition of a Gaussian matrix with the signs of R's
    diagonal, without which it is not Haar (Mezzadri 2007, Notices AMS 54, section 5).
    """
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
