"""Laws that agree with a few runs: draws of a posterior, where resamples of the runs determine no law, or too few."""

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.scaling.law_search import GRID
from toposcope.typing import Matrix, Vector

EXPONENT = (float(np.log(0.3)), 1.0)
"""Prior of the logarithm of an exponent, mean and standard deviation: 0.1 to 0.8, where those of losses are."""
ASSUMED_SCATTER = 0.005
"""Nats: scatter of runs of one recipe about their law, where there are no residuals to show it."""
ASSUMED_RUNS = 2.0
"""Degrees of freedom that the assumed scatter counts for beside those of the residuals."""
N_CELLS, N_ZOOMS = 40, 3
"""Exponents on each axis of the grid, and how often it closes in on those that are likely."""
MIN_DENSITY = 1e-4
"""Of an exponent, relative to the likeliest: less likely ones are cut off the grid."""
N_TRIES = 64
"""Draws of E, A and B at each pair of exponents, of which the positive ones count."""


def posterior_laws(
    N: Vector, D: Vector, loss: Vector, runs: NDArray[np.int64], draws: int, random: np.random.Generator
) -> Matrix:
    """Return draws of E, A, B, alpha and beta given the losses of a few runs, shape (draws, 5).

    At each pair of exponents the law is linear: E, A and B have a multivariate t distribution, of which the positive
    part counts, with a flat prior on the terms at the mean of ln N and ln D. The variance of a run about the law has a
    scaled inverse chi-squared prior (`ASSUMED_SCATTER`, `ASSUMED_RUNS`), so that runs as many as parameters have
    a scatter too. Points of a run count as one together (Gelman et al., Bayesian Data Analysis, sections 3.2, 14.2).
    """
    centre = np.log(N).mean(), np.log(D).mean()
    x, y = np.log(N) - centre[0], np.log(D) - centre[1]
    root = 1 / np.sqrt(np.bincount(runs)[runs])
    freedom = max(ASSUMED_RUNS + len(np.unique(runs)) - 3, 1.0)
    axes = [np.log(GRID[[0, -1]])] * 2
    for zoom in range(N_ZOOMS + 1):
        axes = [np.linspace(axis[0], axis[-1], N_CELLS) for axis in axes]
        logs = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        alpha, beta = np.exp(logs)
        terms = np.stack([np.ones((len(alpha), len(x))), np.exp(-np.outer(alpha, x)), np.exp(-np.outer(beta, y))], 2)
        q, r = np.linalg.qr(terms * root[:, None])
        size = np.abs(np.einsum("kii->ki", r))
        singular = size.min(axis=1) < 1e-9 * size.max(axis=1)
        r[singular] = np.eye(3)
        projected = np.einsum("kij,i->kj", q, loss * root)
        square = ASSUMED_RUNS * ASSUMED_SCATTER**2 + np.maximum(
            (loss * root) @ (loss * root) - (projected**2).sum(1), 0
        )
        inverse = np.linalg.inv(r)
        tries = random.standard_normal((N_TRIES, 3)) / np.sqrt(random.chisquare(freedom, N_TRIES) / freedom)[:, None]
        linear = np.einsum(
            "kij,kmj->kmi", inverse, projected[:, None] + np.sqrt(square / freedom)[:, None, None] * tries
        )
        positive = (linear > 0).all(axis=2)
        with np.errstate(divide="ignore"):
            density = np.log(positive.mean(axis=1)) - np.log(size).sum(axis=1) - freedom / 2 * np.log(square)
        density -= (((logs - EXPONENT[0]) / EXPONENT[1]) ** 2).sum(axis=0) / 2
        density[singular] = -np.inf
        if not np.isfinite(density).any():
            return np.empty((0, 5))
        share = np.exp(density - density.max())
        if zoom < N_ZOOMS:
            axes = [_likely(axis, share.reshape(N_CELLS, N_CELLS).sum(1 - i)) for i, axis in enumerate(axes)]
    cells = random.choice(len(share), draws, p=share / share.sum())
    chosen = (random.random((draws, N_TRIES)) * positive[cells]).argmax(axis=1)
    E, a, b = linear[cells, chosen].T
    return np.stack(
        [E, a * np.exp(alpha[cells] * centre[0]), b * np.exp(beta[cells] * centre[1]), alpha[cells], beta[cells]], 1
    )


def _likely(axis: Vector, share: Vector) -> Vector:
    """Return the part of an axis that is likely, with a step to either side where there is one."""
    places = np.flatnonzero(share > MIN_DENSITY * share.max())
    return axis[max(places[0] - 1, 0) : places[-1] + 2]
