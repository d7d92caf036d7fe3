"""Nested models of one target at one fraction, fitted without the runs that they predict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from toposcope.analysis import tuning
from toposcope.analysis.nested_models.columns import (
    LEVELS,
    LOSS,
    PLAIN,
    PROJECTIONS,
    SCHEDULE,
    TWIN,
    Problem,
    winsorised,
)
from toposcope.analysis.nested_models.population import CONFIGURATIONS
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

MIN_DIAGONAL = 1e-10


@dataclass(frozen=True, eq=False)
class Block:
    """Columns of the runs that are learned from, and of held-out runs, scaled alike."""

    learned: Matrix  # shape (n, p)
    held_out: Matrix  # shape (m, p)

    def scaled(self) -> "Block":
        """Return the block with rows of length 1 on average, so that a strength means the same for any width."""
        factor = 1 / np.sqrt(max(self.learned.shape[1], 1))
        return Block(self.learned * factor, self.held_out * factor)

    def with_block(self, other: "Block") -> "Block":
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
    """Return columns standardised by those learned from, clipped at 3, unknown values 0, without constant ones."""
    known = np.isfinite(learned)
    count = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, learned, 0.0).sum(axis=0) / count
    left = np.where(known, learned - centre, 0.0)
    scale = np.sqrt((left**2).sum(axis=0) / count)
    varies = scale > 1e-9 * (1 + np.abs(centre))

    def z(values: Matrix) -> Matrix:
        deviations = (values[:, varies] - centre[varies]) / scale[varies]
        return np.asarray(np.clip(np.nan_to_num(deviations, nan=0.0), -tuning.MAX_DEVIATIONS, tuning.MAX_DEVIATIONS))

    return Block(z(learned), z(held_out))


@dataclass(frozen=True, eq=False)
class RidgeModel:
    """A ridge on some blocks."""

    target: Vector  # shape (n,); of mean about 0 and standard deviation about 1
    groups: Sequence[Indices] | None  # runs held out together in choosing strengths; None: each by itself
    directions: Matrix  # shape (n, r); V of G = I - V V'
    residuals: Vector  # shape (n,); G y
    cross: Matrix  # shape (m, n); sum over blocks of held-out times learned columns, over the strength

    @classmethod
    def of(
        cls, blocks: Sequence[Block], strengths: Sequence[float], target: Vector, groups: Sequence[Indices] | None
    ) -> "RidgeModel":
        """Return the ridge on blocks of finite strength, and an intercept."""
        used = [(block, s) for block, s in zip(blocks, strengths, strict=True) if np.isfinite(s)]
        n, m = len(target), len(blocks[0].held_out)
        used = [(Block(np.ones((n, 1)), np.ones((m, 1))), tuning.INTERCEPT_STRENGTH), *used]
        Z = np.hstack([block.learned / np.sqrt(s) for block, s in used])
        held_out = np.hstack([block.held_out / np.sqrt(s) for block, s in used])
        directions = _directions(Z)
        residuals = target - directions @ (directions.T @ target)
        return cls(target, groups, directions, residuals, held_out @ Z.T)

    def prediction(self) -> Vector:
        """Return the prediction for the held-out runs, shape (m,)."""
        return np.asarray(self.cross @ self.residuals)

    def prediction_with(self, block: Block) -> Vector:
        """Return the prediction with a further block of the strength that errs least, shape (m,)."""
        strength, residuals = self.chosen(block)
        if not np.isfinite(strength):
            return self.prediction()
        return np.asarray(self.cross @ residuals + block.held_out @ (block.learned.T @ residuals) / strength)

    def chosen(self, block: Block) -> tuple[float, Vector]:
        """Return the strength of a further block that errs least on held-out groups, and the residuals with it."""
        if not block.learned.shape[1]:
            return np.inf, self.residuals
        left = block.learned - self.directions @ (self.directions.T @ block.learned)
        size, rotation = eigh(block.learned.T @ left, check_finite=False)
        W, u = left @ rotation, rotation.T @ (block.learned.T @ self.residuals)
        weights = 1 / (tuning.STRENGTHS[:, None] + np.maximum(size, 0.0))
        residuals = self.residuals[:, None] - W @ (weights * u).T
        nothing = np.zeros((len(self.target), 1)), np.zeros((1, 1)), self.residuals[:, None]
        errors = np.append(self._held_out_errors(W, weights, residuals), self._held_out_errors(*nothing))
        best = len(errors) - 1 - int(errors[::-1].argmin())  # of equal ones the strongest
        if best == len(tuning.STRENGTHS):
            return np.inf, self.residuals
        return float(tuning.STRENGTHS[best]), residuals[:, best]

    def _held_out_errors(self, W: Matrix, weights: Matrix, residuals: Matrix) -> Vector:
        """Return the mean absolute error on held-out groups, by strength."""
        if self.groups is None:
            diagonal = 1 - (self.directions**2).sum(axis=1)[:, None] - W**2 @ weights.T
            return np.asarray(np.abs(residuals / np.maximum(diagonal, MIN_DIAGONAL)).mean(axis=0))
        total = np.zeros(len(weights))
        for group in self.groups:
            V, w, eye = self.directions[group], W[group], np.eye(len(group))
            parts = eye - V @ V.T - np.einsum("ik,sk,jk->sij", w, weights, w, optimize=True)
            # A part may be almost singular.
            solved = np.linalg.solve(parts + MIN_DIAGONAL * eye, residuals[group].T[:, :, None])[:, :, 0]
            total += np.abs(solved).sum(axis=1)
        return total / len(self.target)


def fit_ridge(blocks: Sequence[Block], target: Vector, groups: Sequence[Indices] | None = None) -> RidgeModel:
    """Choose the strengths of blocks one after the other, then again given the others, and fit the ridge."""
    strengths = [np.inf] * len(blocks)
    for _ in range(tuning.SWEEPS):
        for i, block in enumerate(blocks):
            strengths[i] = np.inf
            strengths[i] = RidgeModel.of(blocks, strengths, target, groups).chosen(block)[0]
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


MEDIAN, WITH_SCHEDULE, WITH_PLAIN = "median", "schedule", "norms and spectra"
ALL_TOPOLOGY = "all topology"
WITH_PROJECTIONS, WITH_TWIN = "random projections", "placebo twin"
CONTROLS = {PROJECTIONS: WITH_PROJECTIONS, TWIN: WITH_TWIN}  # models with what topology has to beat, by probe
WITHOUT = (LOSS, WITH_SCHEDULE, WITH_PLAIN)  # the models without topology, each with the columns of the one before it
BEFORE = {LOSS: MEDIAN, WITH_SCHEDULE: LOSS, WITH_PLAIN: WITH_SCHEDULE}
"""The model that another one is compared with; all further ones are compared with that of norms and spectra."""
N_FOLDS = 10
MIN_LEARNED = 12  # runs to learn from


@dataclass(frozen=True, eq=False)
class Fold:
    """Models that are learned from some runs, to predict others."""

    learned: Indices  # places of the runs
    held_out: Indices
    centre: float  # of the target of the runs that are learned from
    scale: float
    low: float  # predictions are clipped to the range of these targets, extended by as much on both sides
    high: float
    models: dict[str, RidgeModel]  # the loss; with the schedule; with norms and spectra

    def prediction_with(self, table: Matrix) -> Vector:
        """Return predictions from the model with norms and spectra, and further columns."""
        return self.unscaled(
            self.models[WITH_PLAIN].prediction_with(standardised(table[self.learned], table[self.held_out]).scaled())
        )

    def unscaled(self, predicted: Vector) -> Vector:
        """Return predictions in the target's unit."""
        return np.asarray(np.clip(self.centre + self.scale * predicted, self.low, self.high))


def further_tables(problem: Problem) -> dict[str, Matrix]:
    """Return the columns that are added to the model with norms and spectra, by the name of the model."""
    columns = problem.columns
    tables = dict(columns.families)
    if len(columns.families) > 1:
        tables[ALL_TOPOLOGY] = np.hstack(list(columns.families.values()))
    return tables | {model: columns.blocks[probe] for probe, model in CONTROLS.items() if probe in columns.blocks}


def folds(problem: Problem, grouping: str) -> list[Fold]:
    """Fit the models without the runs of each fold; none if there would be too few to learn from."""
    fold = fold_places(problem, grouping)
    names = np.unique(fold)
    if len(names) < 2 or min(int((fold != name).sum()) for name in names) < MIN_LEARNED:
        return []
    return [_fold(problem, np.flatnonzero(fold != name), np.flatnonzero(fold == name), grouping) for name in names]


def named_draws(*names: str | int) -> np.random.Generator:
    """Return the random numbers of one choice of nested models."""
    return np.random.default_rng(derive_seed(tuning.SEED, "nested models", *names))


def fold_places(problem: Problem, grouping: str, n_folds: int = N_FOLDS) -> Indices:
    """Return the fold of each run."""
    names, place = np.unique(problem.groups[grouping], return_inverse=True)
    if grouping != CONFIGURATIONS and len(names) <= n_folds:
        return np.asarray(place)
    order = named_draws("folds", len(names)).permutation(len(names))
    return np.asarray((order % n_folds)[place])


def predictions(problem: Problem, fitted: list[Fold]) -> dict[str, Vector]:
    """Return the predictions of every model for every run, shape (n,) each."""
    further = further_tables(problem)
    found = {name: np.full(len(problem.values), np.nan) for name in (MEDIAN, *BEFORE, *further)}
    target, centre = problem.fitted(), np.mean if problem.kind == "event" else np.median
    for fold in fitted:
        found[MEDIAN][fold.held_out] = centre(target[fold.learned])
        for name, model in fold.models.items():
            found[name][fold.held_out] = fold.unscaled(model.prediction())
        for name, table in further.items():
            found[name][fold.held_out] = fold.prediction_with(table)
    return found


def widths(problem: Problem) -> dict[str, int]:
    """Return how many columns each model adds to the one before it."""
    blocks = problem.columns.blocks
    tables = {LOSS: blocks[LOSS], WITH_SCHEDULE: blocks[SCHEDULE], WITH_PLAIN: blocks[PLAIN], **further_tables(problem)}
    return {MEDIAN: 0, **{name: table.shape[1] for name, table in tables.items()}}


def _fold(problem: Problem, learned: Indices, held_out: Indices, grouping: str) -> Fold:
    target = problem.fitted()[learned]
    low, high = float(target.min()), float(target.max())
    if problem.kind != "event":
        target = winsorised(target)
    centre, scale = float(target.mean()), float(target.std()) or 1.0
    reach = 0.0 if problem.kind == "event" else high - low
    groups = list(_inner_groups(problem, learned, grouping))
    y = (target - centre) / scale
    single = None if len(groups) == len(learned) else groups
    models = {name: fit_ridge(blocks, y, single) for name, blocks in _nest(problem, learned, held_out).items()}
    return Fold(learned, held_out, centre, scale, low - reach, high + reach, models)


def _inner_groups(problem: Problem, learned: Indices, grouping: str) -> Iterator[Indices]:
    """Yield the runs held out together in choosing strengths: as outside, where there are two such groups."""
    groups = problem.groups[grouping][learned]
    if len(np.unique(groups)) < 2:
        groups = problem.groups[CONFIGURATIONS][learned]
    for name in np.unique(groups):
        yield np.flatnonzero(groups == name)


def _nest(problem: Problem, learned: Indices, held_out: Indices) -> dict[str, list[Block]]:
    """Return the blocks of the nested models without topology.

    The schedule enters with squares and products, also with those of the losses, since the final loss has its minimum
    at some learning rate; norms and spectra with squares. Otherwise topology would stand in for what bends.
    """
    blocks = problem.columns.blocks
    loss, levels, schedule, plain = (
        standardised(blocks[name][learned], blocks[name][held_out]) for name in (LOSS, LEVELS, SCHEDULE, PLAIN)
    )
    with_schedule = [loss, schedule, levels.with_block(schedule).products()]
    nest = {LOSS: [loss], WITH_SCHEDULE: with_schedule, WITH_PLAIN: [*with_schedule, plain, plain.squares()]}
    return {name: [block.scaled() for block in of_model] for name, of_model in nest.items()}


def is_boosted(problem: Problem) -> bool:
    """Return whether a problem is fitted by boosting: at few fractions, of many runs."""
    enough = len(problem.values) >= tuning.MIN_BOOSTED_RUNS
    return enough and problem.columns.fraction in tuning.BOOSTED_FRACTIONS


def boosted_predictions(problem: Problem) -> dict[str, Vector]:
    """Return the predictions with norms and spectra, topology and controls, configurations held out in five folds."""
    blocks, further = problem.columns.blocks, further_tables(problem)
    plain = np.hstack([blocks[LOSS], blocks[SCHEDULE], blocks[PLAIN]])
    tables = {WITH_PLAIN: plain}
    chosen = [
        name for name in further if name in (ALL_TOPOLOGY, *CONTROLS.values()) or len(problem.columns.families) == 1
    ]
    tables |= {name: np.hstack([plain, further[name]]) for name in chosen}
    return {name: _boosted(problem, table) for name, table in tables.items()}


def _boosted(problem: Problem, table: Matrix) -> Vector:
    from sklearn.ensemble import HistGradientBoostingRegressor  # slow to import

    target, fold = problem.fitted(), fold_places(problem, CONFIGURATIONS, tuning.BOOSTING_FOLDS)
    predicted = np.full(len(target), np.nan)
    for name in np.unique(fold):
        learned = fold != name
        model = HistGradientBoostingRegressor(
            learning_rate=tuning.LEARNING_RATE,
            max_iter=tuning.MAX_ROUNDS,
            max_leaf_nodes=tuning.MAX_LEAVES,
            min_samples_leaf=tuning.MIN_LEAF_RUNS,
            early_stopping=True,
            validation_fraction=tuning.STOPPING_SHARE,
            n_iter_no_change=tuning.STOPPING_ROUNDS,
            random_state=derive_seed(tuning.SEED, "nested models", "boosting", int(name)) % (1 << 32),
        )
        known = target[learned] if problem.kind == "event" else winsorised(target[learned])
        predicted[~learned] = model.fit(table[learned], known).predict(table[~learned])
    return predicted
