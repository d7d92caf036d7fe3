"""How alike two representations of the same objects are, up to rotation and scale: linear CKA and Procrustes."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_scaled_matrix
from toposcope.typing import Matrix


def linear_cka(X: ArrayLike | Any, Y: ArrayLike | Any) -> float:
    """Return the linear centred kernel alignment of two representations of the same objects.

    With the columns of X and Y centred, ||X'Y||_F^2 / (||X'X||_F ||Y'Y||_F).

    Parameters
    ----------
    X, Y : array-like or torch.Tensor, shapes (n, d) and (n, e)
        Row i of both is the same object. Any floating-point dtype; computed in float64.

    Returns
    -------
    float
        In [0, 1]: 1 if a rotation (or reflection) and a scale take one to the other.

    Raises
    ------
    ToposcopeError
        If an argument is not a finite floating-point matrix, the two differ in n, or all points of one are equal.

    Notes
    -----
    Source: Kornblith, Norouzi, Lee & Hinton 2019, arXiv:1905.00414, Eq. 4 with linear kernels, section 3. With
    d + e <= n the products are those of features, O(n (d + e)^2) time and O((d + e)^2) memory beside the points; else
    those of objects, O(n^2 (d + e)) and O(n^2). The bias of few objects is not removed: unrelated Gaussian points come
    to about (d e / ((n + d) (n + e)))^(1/2), not to 0. The number of threads of BLAS changes last digits: up to 3e-15.
    """
    x, y = _two_centred(X, Y)
    if x.shape[1] + y.shape[1] <= len(x):
        both = _size(x.T @ y)
        alone = _size(x.T @ x) * _size(y.T @ y)
        return min(1.0, both**2 / alone)
    K, L = x @ x.T, y @ y.T
    return max(0.0, min(1.0, float(np.vdot(K, L)) / (_size(K) * _size(L))))


def procrustes(X: ArrayLike | Any, Y: ArrayLike | Any) -> float:
    """Return the distance of two representations of the same objects, after the best shift, scale and rotation.

    With X and Y centred and divided by their Frobenius norms, min ||X - YQ||_F over orthogonal Q, which is
    sqrt(2 - 2 ||X'Y||_*), * for the sum of singular values. The narrower is padded with columns of zeros.

    Parameters
    ----------
    X, Y : array-like or torch.Tensor, shapes (n, d) and (n, e)
        Row i of both is the same object. Any floating-point dtype; computed in float64.

    Returns
    -------
    float
        In [0, sqrt(2)]. A metric: symmetric, 0 only if a shift, a scale and a rotation or reflection take one to the
        other, and the triangle inequality holds.

    Raises
    ------
    ToposcopeError
        As of `linear_cka`.

    Notes
    -----
    Source: Schoenemann 1966, Psychometrika 31:1-10; as a metric of shapes Williams, Kunz, Kornblith & Linderman 2021,
    arXiv:2110.14739, section 2.1. The disparity of ``scipy.spatial.procrustes``, which scales Y once more, is
    1 - ||X'Y||_*^2. O(n d e + (d + e) min(d, e)^2) time; of representations wider than n, d and e are n, after
    O(n^2 (d + e)). The distance of equal ones is 0 up to about 1e-8, as its square is up to rounding. The number of
    threads of BLAS changes last digits: of 2 - 2 ||X'Y||_* up to about 1e-14.
    """
    x, y = (_narrowed(points) for points in _two_centred(X, Y))
    nuclear = float(np.linalg.svd(x.T @ y, compute_uv=False).sum())
    return math.sqrt(max(0.0, 2 - 2 * nuclear))


def _two_centred(X: ArrayLike | Any, Y: ArrayLike | Any) -> tuple[Matrix, Matrix]:
    """Return both centred, with Frobenius norm 1."""
    x, y = _centred(X, "X"), _centred(Y, "Y")
    if len(x) != len(y):
        raise ToposcopeError(
            f"Y: expected as many points as X, shape {x.shape}, got shape {y.shape}; row i of both is the same object"
        )
    return x, y


def _centred(values: ArrayLike | Any, name: str) -> Matrix:
    points, _ = as_scaled_matrix(values, name)
    if (points == points[0]).all():
        raise ToposcopeError(f"{name}: all {len(points)} points are equal, shape {points.shape}; they have no shape")
    points -= points.mean(axis=0)
    points -= points.mean(axis=0)  # what rounding left of it
    points /= np.abs(points).max()  # squares of close points far from the origin would underflow
    points /= np.linalg.norm(points)
    return points


def _narrowed(points: Matrix) -> Matrix:
    """Return points of no more dimensions than there are points, with the same products between them."""
    n, d = points.shape
    if d <= n:
        return points
    triangle: Matrix = np.asarray(np.linalg.qr(points.T, mode="r"))
    return triangle.T


def _size(matrix: Matrix) -> float:
    return float(np.linalg.norm(matrix))
