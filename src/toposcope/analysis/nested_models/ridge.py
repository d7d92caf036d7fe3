"""Ridge regression on blocks of columns, each with a strength of its own, chosen by leaving runs out.

The model of the target is a sum over blocks of Z_b beta_b, with a penalty of strength_b |beta_b|^2. With K the sum of
Z_b Z_b' / strength_b, all that is needed is G = (I + K)^-1 = I - V V' with V of as many columns as the blocks have: the
residuals are G y, and those of runs that are left out are (G y)_i / G_ii, or, of a group of runs, solve(G_gg, (G y)_g).
A further block changes G by as many directions as it has columns (Woodbury), so trying one costs little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from toposcope.typing import Indices, Matrix, Vector

STRENGTHS: Vector = 10.0 ** np.arange(-4, 2.25, 0.5)
"""Candidates, weakest first, for blocks whose rows have length 1 on average; a block may also be left out."""
INTERCEPT_STRENGTH = 1e-3
SWEEPS = 2
"""Times each strength is chosen given the others."""
MAX_DEVIATIONS = 3.0
"""Standard deviations; values further out are clipped."""
MIN_DIAGONAL = 1e-10


@dataclass(frozen=True, eq=False)
class Block:
    """Columns of the runs that are learned from, and of those that are left out, scaled alike.

    Attributes
    ----------
    learned : ndarray, shape (n, p)
    held_out : ndarray, shape (m, p)
    """

    learned: Matrix
    held_out: Matrix

    def scaled(self) -> "Block":
        """Return the block with rows of length 1 on average, so that a strength means the same for any width."""
        factor = 1 / np.sqrt(max(self.learned.shape[1], 1))
        return Block(self.learned * factor, self.held_out * factor)

    def beside(self, other: "Block") -> "Block":
        """Return the columns of both."""
        return Block(np.hstack([self.learned, other.learned]), np.hstack([self.held_out, other.held_out]))

    def products(self) -> "Block":
        """Return squares and products of the columns, standardised."""
        i, j = np.triu_indices(self.learned.shape[1])
        return standardised(self.learned[:, i] * self.learned[:, j], self.held_out[:, i] * self.held_out[:, j])

    def squares(self) -> "Block":
        """Return squares of the columns, standardised."""
        return standardised(self.learned**2, self.held_out**2)


def standardised(learned: Matrix, held_out: Matrix) -> Block:
    """Return columns less their mean, over their standard deviation, both of the runs that are learned from.

    Unknown values become the mean, values are clipped at 3 standard deviations, and constant columns are dropped.
    """
    known = np.isfinite(learned)
    count = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, learned, 0.0).sum(axis=0) / count
    left = np.where(known, learned - centre, 0.0)
    scale = np.sqrt((left**2).sum(axis=0) / count)
    varies = scale > 1e-9 * (1 + np.abs(centre))

    def z(values: Matrix) -> Matrix:
        deviations = (values[:, varies] - centre[varies]) / scale[varies]
        return np.asarray(np.clip(np.nan_to_num(deviations, nan=0.0), -MAX_DEVIATIONS, MAX_DEVIATIONS))

    return Block(z(learned), z(held_out))


@dataclass(frozen=True, eq=False)
class RidgeModel:
    """A ridge on some blocks.

    Attributes
    ----------
    target : ndarray, shape (n,)
        Of mean about 0 and standard deviation about 1.
    groups : sequence of ndarray of int, or None
        Runs that are left out together in choosing strengths; None: each run by itself.
    directions : ndarray, shape (n, r)
        V of G = I - V V'.
    residuals : ndarray, shape (n,)
        G y.
    cross : ndarray, shape (m, n)
        Sum over blocks of held-out times learned columns, over the strength.
    """

    target: Vector
    groups: Sequence[Indices] | None
    directions: Matrix
    residuals: Vector
    cross: Matrix

    @classmethod
    def of(
        cls, blocks: Sequence[Block], strengths: Sequence[float], target: Vector, groups: Sequence[Indices] | None
    ) -> "RidgeModel":
        """Return the ridge on blocks with given strengths, those of infinite strength left out, and an intercept."""
        used = [(block, s) for block, s in zip(blocks, strengths, strict=True) if np.isfinite(s)]
        n, m = len(target), len(blocks[0].held_out)
        ones = Block(np.ones((n, 1)), np.ones((m, 1)))
        used = [(ones, INTERCEPT_STRENGTH), *used]
        Z = np.hstack([block.learned / np.sqrt(s) for block, s in used])
        held_out = np.hstack([block.held_out / np.sqrt(s) for block, s in used])
        directions = _directions(Z)
        residuals = target - directions @ (directions.T @ target)
        return cls(target, groups, directions, residuals, held_out @ Z.T)

    def prediction(self) -> Vector:
        """Return the prediction for the runs that are left out, shape (m,)."""
        return np.asarray(self.cross @ self.residuals)

    def best_strength(self, block: Block) -> float:
        """Return the strength of a further block that errs least on groups that are left out; infinite for none."""
        return self._chosen(block)[0]

    def prediction_with(self, block: Block) -> Vector:
        """Return the prediction with a further block of the strength that errs least, shape (m,)."""
        strength, residuals = self._chosen(block)
        if not np.isfinite(strength):
            return self.prediction()
        return np.asarray(self.cross @ residuals + block.held_out @ (block.learned.T @ residuals) / strength)

    def _chosen(self, block: Block) -> tuple[float, Vector]:
        """Return the best strength of a further block, and the residuals with it."""
        if not block.learned.shape[1]:
            return np.inf, self.residuals
        left = block.learned - self.directions @ (self.directions.T @ block.learned)
        size, rotation = eigh(block.learned.T @ left, check_finite=False)
        W, u = left @ rotation, rotation.T @ (block.learned.T @ self.residuals)
        weights = 1 / (STRENGTHS[:, None] + np.maximum(size, 0.0))
        residuals = self.residuals[:, None] - W @ (weights * u).T
        errors = np.append(self._left_out_errors(W, weights, residuals), self._left_out_errors_now())
        best = len(errors) - 1 - int(errors[::-1].argmin())  # of equal ones the strongest
        if best == len(STRENGTHS):
            return np.inf, self.residuals
        return float(STRENGTHS[best]), residuals[:, best]

    def _left_out_errors(self, W: Matrix, weights: Matrix, residuals: Matrix) -> Vector:
        """Return the mean absolute error on groups that are left out, by strength."""
        if self.groups is None:
            diagonal = 1 - (self.directions**2).sum(axis=1)[:, None] - W**2 @ weights.T
            return np.asarray(np.abs(residuals / np.maximum(diagonal, MIN_DIAGONAL)).mean(axis=0))
        total = np.zeros(len(weights))
        for group in self.groups:
            V, w = self.directions[group], W[group]
            now = np.eye(len(group)) - V @ V.T
            parts = now - np.einsum("ik,sk,jk->sij", w, weights, w, optimize=True)
            total += np.abs(_solved(parts, residuals[group].T)).sum(axis=1)
        return total / len(self.target)

    def _left_out_errors_now(self) -> float:
        nothing = np.zeros((len(self.target), 1)), np.zeros((1, 1)), self.residuals[:, None]
        return float(self._left_out_errors(*nothing)[0])


def fit_ridge(blocks: Sequence[Block], target: Vector, groups: Sequence[Indices] | None = None) -> RidgeModel:
    """Choose the strengths of blocks one after the other, then again given the others, and fit the ridge."""
    strengths = [np.inf] * len(blocks)
    for _ in range(SWEEPS):
        for i, block in enumerate(blocks):
            strengths[i] = np.inf
            strengths[i] = RidgeModel.of(blocks, strengths, target, groups).best_strength(block)
    return RidgeModel.of(blocks, strengths, target, groups)


def _directions(Z: Matrix) -> Matrix:
    """Return V with I - V V' = (I + Z Z')^-1."""
    n, r = Z.shape
    if r <= n:
        factor = cholesky(np.eye(r) + Z.T @ Z, lower=True, check_finite=False)
        return np.asarray(solve_triangular(factor, Z.T, lower=True, check_finite=False).T)
    size, rotation = eigh(Z @ Z.T, check_finite=False)
    size = np.maximum(size, 0.0)
    return np.asarray(rotation * np.sqrt(size / (1 + size)))


def _solved(matrices: Matrix, values: Matrix) -> Matrix:
    """Solve symmetric systems, shape (s, g, g) and (s, g), that may be almost singular."""
    size = matrices.shape[-1]
    return np.asarray(np.linalg.solve(matrices + MIN_DIAGONAL * np.eye(size), values[:, :, None])[:, :, 0])
