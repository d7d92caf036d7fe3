"""The multi-power law fitted to runs of one model: exponents and C searched, the rest solved for (Luo et al. 2025).

L = L0 + A S^-a - B G(C, b, g). For given a, C, b and g the rest is linear, and no less than 0. Golub & Pereyra 2003
(variable projection), with Kaufman's 1975 derivative; residuals are relative, and reweighted by Huber's function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from toposcope.forecasting.forecasters.falls import Falls, gains
from toposcope.typing import Matrix, Vector

STARTS = tuple(product((0.01, 0.1, 1.0), (0.3, 0.6, 1.2), (0.2, 0.6), (0.5,)))
"""C, b, g and a, rates in units of the peak."""
LOWEST, HIGHEST = (1e-6, 0.02, 1e-3, 0.02), (1e4, 5.0, 2.0, 2.0)
SEARCHES = 3
"""How many of the best starts are followed."""
ROUNDS = 3
LEAST_SCALE = 1e-3
"""Of a relative residual, beyond which it counts less: the publication's; or more, if the runs are noisier."""
HUBER, NORMAL = 1.345, 1.4826
MOST_EVALUATIONS = 60
MOST_SOLVING = 1000


class Curve(NamedTuple):
    """What is fitted of a run; rates in the unit of the fit.

    Attributes
    ----------
    summed : ndarray, shape (n,)
        S1 + S_W.
    falls : Falls
    loss : ndarray, shape (n,)
    """

    summed: Vector
    falls: Falls
    loss: Vector


@dataclass(frozen=True)
class FittedFalls:
    """A fitted law; rates in the unit of the fit.

    Attributes
    ----------
    L0, A, a, B, C, b, g : float
    scale : float
        Of the relative residuals.
    """

    L0: float
    A: float
    a: float
    B: float
    C: float
    b: float
    g: float
    scale: float


def joined(curves: Sequence[Curve]) -> Curve:
    """Return curves one after the other."""
    offsets = np.cumsum([0, *(len(curve.loss) for curve in curves[:-1])])
    row = np.concatenate([curve.falls.row + offset for curve, offset in zip(curves, offsets, strict=True)])
    weight, log_rate, log_sum = (
        np.concatenate([getattr(curve.falls, name) for curve in curves]) for name in ("weight", "log_rate", "log_sum")
    )
    loss = np.concatenate([curve.loss for curve in curves])
    return Curve(
        np.concatenate([curve.summed for curve in curves]), Falls(row, weight, log_rate, log_sum, len(loss)), loss
    )


class Problem:
    """Curves side by side, and what is linear in their law solved for.

    Parameters
    ----------
    curves : list of Curve
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        summed, self.falls, self.loss = joined(curves)
        # In units of the longest run: A is then the loss still to be lost there.
        self.unit = float(summed.max())
        self.log_summed = np.log(summed / self.unit)
        self.weight = np.ones(len(self.loss))

    def solve(self, q: Vector) -> tuple[Vector, Vector, Matrix]:
        """Solve for L0, A and B.

        Parameters
        ----------
        q : ndarray, shape (4,)
            Logarithms of C, b, g and a.

        Returns
        -------
        solved : ndarray, shape (3,)
            L0, A in the unit of the longest run, and B.
        residuals : ndarray, shape (n,)
            Relative and weighted.
        jacobian : ndarray, shape (n, 4)
            Of the residuals by q.
        """
        from scipy.optimize import nnls

        C, b, g, a = np.exp(q)
        found = gains(self.falls, C, b, g)
        power = np.exp(-a * self.log_summed)
        scaling = self.weight / self.loss
        columns = np.stack([np.ones_like(power), power, -found.values], axis=1) * scaling[:, None]
        solved = nnls(columns, self.weight, maxiter=MOST_SOLVING)[0]
        by_a = -solved[1] * a * self.log_summed * power
        slopes = np.stack([*(-solved[2] * by for by in found[1:]), by_a], axis=1) * scaling[:, None]
        basis = np.linalg.qr(columns[:, solved > 0])[0]
        return solved, columns @ solved - self.weight, slopes - basis @ (basis.T @ slopes)

    def search(self, q: Vector) -> tuple[Vector, float]:
        """Search a, C, b and g from a start; return them and half the sum of squares."""
        from scipy.optimize import least_squares

        low, high = np.log(LOWEST), np.log(HIGHEST)
        last: list[tuple[Vector, tuple[Vector, Vector, Matrix]]] = []

        def at(q: Vector) -> tuple[Vector, Vector, Matrix]:
            if not last or not np.array_equal(last[0][0], q):
                last[:] = [(q.copy(), self.solve(q))]
            return last[0][1]

        found = least_squares(
            lambda q: at(q)[1],
            np.clip(q, low + 1e-6, high - 1e-6),
            jac=lambda q: at(q)[2],
            bounds=(low, high),
            max_nfev=MOST_EVALUATIONS,
            xtol=1e-7,
            ftol=1e-8,
        )
        return found.x, float(found.cost)

    def reweigh(self, q: Vector) -> float:
        """Weigh by Huber's function of the residuals; return their scale."""
        residuals = self.solve(q)[1] / self.weight
        scale = NORMAL * float(np.median(np.abs(residuals)))
        limit = max(LEAST_SCALE, HUBER * scale)
        self.weight = np.sqrt(np.minimum(1, limit / np.maximum(np.abs(residuals), 1e-15)))
        return scale


def fit_curves(curves: Sequence[Curve]) -> FittedFalls:
    """Fit the law to curves, from the best of several starts."""
    problem = Problem(curves)
    starts = [np.log(start) for start in STARTS]
    starts.sort(key=lambda q: float((problem.solve(q)[1] ** 2).sum()))
    best = min((problem.search(q) for q in starts[:SEARCHES]), key=lambda found: found[1])[0]
    for _ in range(ROUNDS):
        scale = problem.reweigh(best)
        best = problem.search(best)[0]
    L0, A, B = (float(value) for value in problem.solve(best)[0])
    C, b, g, a = (float(value) for value in np.exp(best))
    return FittedFalls(L0, A * problem.unit**a, a, B, C, b, g, scale)
