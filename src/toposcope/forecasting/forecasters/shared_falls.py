"""What runs of several sizes share of the multi-power law: B, C, b and g, with L0, A and a of each size its own.

Each size is tried on a grid of C, b, g and B, once: for every cell and exponent a, L0 and A are solved for. Sizes are
then put together by adding their profile likelihoods, n / 2 log of the sum of squares, so that a size weighs by how
well it is fitted, one that tells nothing adds nothing, and leaving one out costs a subtraction.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecast import RefusedError
from toposcope.forecasting.forecasters.falls import gained
from toposcope.forecasting.forecasters.fitted_falls import HUBER, LEAST_SCALE, NORMAL, Curve, joined
from toposcope.typing import Matrix, Vector

CELLS = tuple(product(np.geomspace(1e-4, 1, 9), (0.2, 0.4, 0.7, 1.2, 2.0), (0.2, 0.5, 0.8, 1.2)))
"""C, b and g, rates in units of the peak."""
SIZES = np.geomspace(0.01, 2, 48)
"""B, in the unit of the loss, for the fall of the whole peak."""
EXPONENTS = np.geomspace(0.08, 1.4, 14)
TOLD = 2.0
"""Of log likelihood: how much better B has to be than the least, or nothing is known of it."""


class Shared(NamedTuple):
    """What runs share; rates in units of each run's own peak, so that runs of other peaks can share it."""

    B: float
    C: float
    b: float
    g: float


def likelihoods(curves: Sequence[Curve]) -> Matrix:
    """Return minus the profile log likelihood of runs of one size, on the grid of cells and B.

    Parameters
    ----------
    curves : list of Curve
        Rates in units of their peak; they share L0, A and a.

    Returns
    -------
    ndarray, shape (cells, sizes)
    """
    curve = joined(curves)
    gain = np.stack([gained(curve.falls, C, b, g) for C, b, g in CELLS])
    bases = np.exp(-EXPONENTS[:, None] * np.log(curve.summed / curve.summed.max()))
    weight = np.ones(len(curve.loss))
    squares = _squares(bases, gain, curve.loss, weight)
    # Once more without what is far off the best of them.
    a, cell, size = np.unravel_index(int(squares.argmin()), squares.shape)
    level = (curve.loss + SIZES[size] * gain[cell]) / curve.loss
    columns = np.stack([np.ones_like(bases[a]), bases[a]], axis=1) / curve.loss[:, None]
    residuals = np.abs(level - columns @ np.linalg.lstsq(columns, level, rcond=None)[0])
    limit = max(LEAST_SCALE, HUBER * NORMAL * float(np.median(residuals)))
    weight = np.sqrt(np.minimum(1, limit / np.maximum(residuals, 1e-15)))
    squares = _squares(bases, gain, curve.loss, weight).min(axis=0)
    floor = len(curve.loss) * (LEAST_SCALE / 10) ** 2
    profile: Matrix = 0.5 * len(curve.loss) * np.log(squares + floor)
    return profile


def best_shared(tables: Sequence[Matrix]) -> Shared:
    """Return the cell and B that suit all sizes together; B between its neighbours by a parabola.

    Raises
    ------
    RefusedError
        If hardly any gain suits as well.
    """
    total = np.sum(tables, axis=0)
    cell, size = np.unravel_index(int(total.argmin()), total.shape)
    if total[:, 0].min() - total[cell, size] < TOLD:
        raise RefusedError("the siblings' losses do not tell what a fall of the learning rate gains")
    log_B = float(np.log(SIZES[size]))
    if size < len(SIZES) - 1:
        before, here, after = total[cell, size - 1 : size + 2]
        # The least of them is not below its neighbours where these are equal to it.
        curvature = max(float(before - 2 * here + after), 1e-12)
        log_B += 0.5 * float(np.clip((before - after) / curvature, -1, 1)) * float(np.log(SIZES[1] / SIZES[0]))
    # Rounded to 1%, so that equal fits are not done again.
    return Shared(float(np.exp(round(log_B, 2))), *(float(value) for value in CELLS[cell]))


def _squares(bases: Matrix, gain: Matrix, loss: Vector, weight: Vector) -> NDArray[np.float64]:
    """Return the sums of squares left by L0 and A, by exponent, cell and B."""
    scaling = weight / loss
    lost = gain * scaling
    found = np.empty((len(bases), len(gain), len(SIZES)))
    for k, power in enumerate(bases):
        basis = np.linalg.qr(np.stack([scaling, power * scaling], axis=1))[0]
        own, other = weight - basis @ (basis.T @ weight), lost - (lost @ basis) @ basis.T
        crossed, squared = other @ own, np.einsum("ij,ij->i", other, other)
        found[k] = own @ own + 2 * crossed[:, None] * SIZES + squared[:, None] * SIZES**2
    return np.maximum(found, 0)
