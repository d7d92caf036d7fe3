"""Ridge regression on blocks of columns, each with a strength of its own, for many targets at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from toposcope.typing import Indices, Matrix, Vector

STRENGTHS: Vector = 10.0 ** np.arange(2, -4.25, -0.5)  # of ridges on blocks of rows of length 1, strongest first
INTERCEPT_STRENGTH, SWEEPS = 1e-3, 2  # each strength is chosen so many times given the others
MAX_DEVIATIONS = 3.0  # standard deviations beyond which columns are clipped
MIN_DIAGONAL = 1e-10


@dataclass(frozen=True, eq=False)
class Block:
    """Columns of the runs that a model is fitted to, and of held-out runs, on one scale."""

    train: Matrix  # shape (n, p)
    held_out: Matrix  # shape (m, p)

    def scaled(self) -> "Block":
        """Return the block with rows of length 1 on average, so that a strength means the same for any width."""
        factor = 1 / np.sqrt(max(self.train.shape[1], 1))
        return Block(self.train * factor, self.held_out * factor)

    def with_block(self, other: "Block") -> "Block":
        """Return the columns of both."""
        return Block(np.hstack([self.train, other.train]), np.hstack([self.held_out, other.held_out]))

    def products(self) -> "Block":
        """Return squares and products of the columns, standardised."""
        i, j = np.triu_indices(self.train.shape[1])
        return standardised(self.train[:, i] * self.train[:, j], self.held_out[:, i] * self.held_out[:, j])

    def squares(self) -> "Block":
        """Return squares of the columns, standardised."""
        return standardised(self.train**2, self.held_out**2)


def standardised(train: Matrix, held_out: Matrix) -> Block:
    """Return columns standardised by the runs fitted to, clipped at 3, unknown values 0, without constant ones."""
    known = np.isfinite(train)
    count = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, train, 0.0).sum(axis=0) / count
    centred = np.where(known, train - centre, 0.0)
    scale = np.sqrt((centred**2).sum(axis=0) / count)
    varies = scale > 1e-9 * (1 + np.abs(centre))

    def z(values: Matrix) -> Matrix:
        deviations = (values[:, varies] - centre[varies]) / scale[varies]
        return np.asarray(np.clip(np.nan_to_num(deviations, nan=0.0), -MAX_DEVIATIONS, MAX_DEVIATIONS))

    return Block(z(train), z(held_out))


@dataclass(frozen=True, eq=False)
class RidgeModel:
    """A ridge on some blocks and an intercept; targets are columns, of mean about 0 and standard deviation about 1."""

    directions: Matrix  # shape (n, r); V of G = I - V V', which maps targets to residuals
    cross: Matrix  # shape (m, n); sum over blocks of held-out times train columns, over the strength
    groups: Sequence[Indices] | None  # runs held out together in choosing strengths; None: each by itself

    @classmethod
    def of(
        cls, blocks: Sequence[Block], strengths: Sequence[float], groups: Sequence[Indices] | None = None
    ) -> "RidgeModel":
        """Return the ridge on the blocks whose strength is finite."""
        n, m = len(blocks[0].train), len(blocks[0].held_out)
        used = [(Block(np.ones((n, 1)), np.ones((m, 1))), INTERCEPT_STRENGTH)]
        used += [(block, s) for block, s in zip(blocks, strengths, strict=True) if np.isfinite(s)]
        Z = np.hstack([block.train / np.sqrt(s) for block, s in used])
        held_out = np.hstack([block.held_out / np.sqrt(s) for block, s in used])
        return cls(_directions(Z), held_out @ Z.T, groups)

    def residuals(self, targets: Matrix) -> Matrix:
        """Return G y for every target, shape (n, b)."""
        return targets - self.directions @ (self.directions.T @ targets)

    def prediction(self, residuals: Matrix) -> Matrix:
        """Return the predictions of the targets with these residuals for the held-out runs, shape (m, b)."""
        return self.cross @ residuals

    def with_block(self, block: Block, residuals: Matrix) -> tuple[Vector, Matrix]:
        """Add a block, to each target's ridge with the strength that errs least on held-out groups.

        Returns the strengths, shape (b,), infinite where the ridge errs least without the block, and the predictions.
        """
        best = self._held_out_errors(residuals, np.zeros((len(residuals), 1)), np.zeros(1))
        predicted = self.prediction(residuals)
        strengths = np.full(residuals.shape[1], np.inf)
        if not block.train.shape[1]:
            return strengths, predicted
        unexplained = block.train - self.directions @ (self.directions.T @ block.train)
        size, rotation = eigh(block.train.T @ unexplained, check_finite=False)
        W, u = unexplained @ rotation, rotation.T @ (block.train.T @ residuals)
        for strength in STRENGTHS.tolist():
            weights = 1 / (strength + np.maximum(size, 0.0))
            changed = residuals - W @ (weights[:, None] * u)
            errors = self._held_out_errors(changed, W, weights)
            better = np.flatnonzero(errors < best)
            if len(better):
                best[better], strengths[better], r = errors[better], strength, changed[:, better]
                predicted[:, better] = self.cross @ r + block.held_out @ (block.train.T @ r) / strength
        return strengths, predicted

    def _held_out_errors(self, residuals: Matrix, W: Matrix, weights: Vector) -> Vector:
        """Return each target's mean absolute error on held-out groups, of the ridge with G - W diag(weights) W'."""
        if self.groups is None:
            diagonal = 1 - (self.directions**2).sum(axis=1) - W**2 @ weights
            return np.asarray(np.abs(residuals / np.maximum(diagonal, MIN_DIAGONAL)[:, None]).mean(axis=0))
        total = np.zeros(residuals.shape[1])
        for group in self.groups:
            V, w, eye = self.directions[group], W[group], np.eye(len(group))
            part = eye - V @ V.T - (w * weights) @ w.T
            total += np.abs(np.linalg.solve(part + MIN_DIAGONAL * eye, residuals[group])).sum(axis=0)  # may be singular
        return total / len(residuals)


def fit_ridge(blocks: Sequence[Block], target: Vector, groups: Sequence[Indices] | None = None) -> RidgeModel:
    """Choose the strengths of blocks one after the other, then again given the others, and fit the ridge."""
    strengths = [np.inf] * len(blocks)
    for _ in range(SWEEPS):
        for i, block in enumerate(blocks):
            strengths[i] = np.inf
            model = RidgeModel.of(blocks, strengths, groups)
            strengths[i] = float(model.with_block(block, model.residuals(target[:, None]))[0][0])
    return RidgeModel.of(blocks, strengths, groups)


def _directions(Z: Matrix) -> Matrix:
    """Return V with I - V V' = (I + Z Z')^-1."""
    n, r = Z.shape
    if r <= n:
        factor = cholesky(np.eye(r) + Z.T @ Z, lower=True, check_finite=False)
        return np.asarray(solve_triangular(factor, Z.T, lower=True, check_finite=False).T)
    size, rotation = eigh(Z @ Z.T, check_finite=False)
    size = np.maximum(size, 0.0)
    return np.asarray(rotation * np.sqrt(size / (1 + size)))
