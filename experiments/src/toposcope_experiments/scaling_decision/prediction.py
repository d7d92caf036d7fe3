"""Predictions of the margin for conditions that are left out, from size and step, the loss, controls and topology.

Arrays of decisions have the shape (conditions, seeds, groups, points); a group is a pair with one amount of further
compute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.extend import Matrix, Vector, derive_seed
from toposcope_experiments.scaling_decision.features import CONTROLS, LOSS, TOPOLOGY

STRENGTHS = np.geomspace(1e-3, 1e3, 13)  # of the ridge, times the number of rows
DRAWS = 20  # of twins, and of noise
SIZE_AND_STEP, LAW = "size and step", "sunk-cost law"
OF_LOSS, OF_CONTROLS = "loss", "loss and controls"
WITH_TOPOLOGY, OWN = "loss and topology", "loss, controls and topology"
OTHER_SEED, TWIN, NOISE = "other seed's topology", "twin's topology", "noise"
ALWAYS_ON, ALWAYS_UP, RULE, OTHER_MARGIN = "always go on", "always scale up", "published rule", "other seed's margin"
Decided = NDArray[np.float64]
"""Shape (conditions, seeds, groups, points)."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a predictor says of each decision; without margins where it only says which way.

    Attributes
    ----------
    scale : ndarray, bool
        Whether to scale up.
    margin, deviation : ndarray or None
        In nats: the margin, and how far such predictions err within the conditions that they learn from.
    """

    scale: NDArray[np.bool_]
    margin: Decided | None = None
    deviation: Decided | None = None


class Decisions:
    """The decisions of a table as arrays.

    Parameters
    ----------
    table : DataFrame
        Of `decision_table`: every condition has every decision.
    """

    def __init__(self, table: pl.DataFrame) -> None:
        self._table = table.sort("condition", "seed", "log_small", "further", "point")
        self.conditions = self._table["condition"].unique(maintain_order=True).to_list()
        n_seeds, n_points = table.n_unique("seed"), table.n_unique("point")
        self._shape = (len(self.conditions), n_seeds, -1, n_points)
        self.groups = self._table.select("pair", "further", "more").unique(maintain_order=True)
        self.margin = self["margin"]

    def __getitem__(self, column: str) -> Decided:
        """Return a column."""
        return self._table[column].to_numpy().astype(np.float64).reshape(self._shape)

    def stacked(self, names: tuple[str, ...]) -> Decided:
        """Return columns along a last axis."""
        return np.stack([self[name] for name in names], axis=-1)


class Predictors:
    """By name, what each predictor says; of twins and noise, each draw. Made when first asked for."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._made: dict[str, list[Predicted]] = {}
        topology, noise = decisions.stacked(TOPOLOGY), np.random.default_rng(derive_seed(0, "noise"))
        always = np.ones(decisions.margin.shape, bool)
        ways = {
            ALWAYS_ON: ~always,
            ALWAYS_UP: always,
            RULE: decisions["published_rule"] > 0,
            OTHER_MARGIN: _other_seed(decisions.margin) < 0,
        }
        self._makers: dict[str, Callable[[], list[Predicted]]] = {
            **{name: partial(list, [Predicted(way)]) for name, way in ways.items()},
            LAW: lambda: [predict_by_law(decisions)],
            SIZE_AND_STEP: lambda: [self._by(())],
            OF_LOSS: lambda: [self._by(LOSS)],
            OF_CONTROLS: lambda: [self._by((*LOSS, *CONTROLS))],
            WITH_TOPOLOGY: lambda: [self._by((*LOSS, *TOPOLOGY))],
            OWN: lambda: [self._beside_controls(topology)],
            OTHER_SEED: lambda: [self._beside_controls(_other_seed(topology))],
            TWIN: lambda: [self._beside_controls(topology[twins(len(topology), draw)]) for draw in range(DRAWS)],
            NOISE: lambda: [self._beside_controls(noise.standard_normal(topology.shape)) for _ in range(DRAWS)],
        }

    def __getitem__(self, name: str) -> list[Predicted]:
        """Return what a predictor says."""
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    @cached_property
    def _known(self) -> Decided:
        return self._decisions.stacked((*LOSS, *CONTROLS))

    def _by(self, names: tuple[str, ...]) -> Predicted:
        shape = self._decisions.margin.shape
        return predict(self._decisions.margin, self._decisions.stacked(names) if names else np.empty((*shape, 0)))

    def _beside_controls(self, features: Decided) -> Predicted:
        return predict(self._decisions.margin, np.concatenate([self._known, features], axis=-1))


def _other_seed(values: Decided) -> Decided:
    return np.roll(values, 1, axis=1)


def twins(n_conditions: int, draw: int) -> NDArray[np.int64]:
    """Return another condition for each, at random."""
    order = np.random.default_rng(derive_seed(0, "twins", draw)).permutation(n_conditions)
    found = np.empty_like(order)
    found[order] = np.roll(order, 1)  # a cycle through all: none is its own
    return found


def predict(margin: Decided, features: Decided) -> Predicted:
    """Predict each condition's margins from the others, by a ridge for each group.

    Margins and features are differences from their mean in the cell over the conditions that are learnt from; a feature
    that is not known yet is at that mean.

    Parameters
    ----------
    margin : ndarray, shape (conditions, seeds, groups, points)
    features : ndarray, shape (conditions, seeds, groups, points, features)
    """
    shape, predicted, deviation = margin.shape, np.empty_like(margin), np.empty_like(margin)
    values = np.concatenate([margin[..., None], features], axis=-1)
    for left_out in range(len(margin)):
        learnt = np.arange(len(margin)) != left_out
        with np.errstate(invalid="ignore"):
            base = _mean_of_known(values[learnt])
        apart = np.nan_to_num(values - base)
        spread = apart[learnt][..., 1:].std(axis=(0, 1, 3))[:, None]
        x, y = apart[..., 1:] / np.where(spread > 0, spread, 1.0), apart[..., 0]
        for group in range(margin.shape[2]):
            rows = x[:, :, group].reshape(len(margin), shape[1] * shape[3], x.shape[-1])
            found, error = _ridge(rows[learnt], y[learnt, :, group].reshape(len(margin) - 1, -1))
            predicted[left_out, :, group] = base[group, :, 0] + x[left_out, :, group] @ found
            deviation[left_out, :, group] = error
    return Predicted(predicted < 0, predicted, deviation)


def _mean_of_known(values: Decided) -> Decided:
    """Return the mean over conditions and seeds, without what is not known; 0 where nothing is."""
    known = np.isfinite(values)
    sums = np.where(known, values, 0.0).sum(axis=(0, 1))
    return np.asarray(sums / np.maximum(known.sum(axis=(0, 1)), 1))


def _ridge(x: Decided, y: Matrix) -> tuple[Vector, float]:
    """Return coefficients of the strength that errs least on conditions left out, and the root of that mean square.

    `x` has the shape (conditions, rows, features), `y` (conditions, rows).
    """
    if not x.shape[2]:
        return np.empty(0), float(np.sqrt((y**2).mean()))
    grams, sides = x.transpose(0, 2, 1) @ x, np.einsum("crf,cr->cf", x, y)
    gram, side = grams.sum(axis=0), sides.sum(axis=0)
    penalties = STRENGTHS * y.size
    lengths, directions = np.linalg.eigh(gram - grams)
    along = np.einsum("cfe,cf->ce", directions, side - sides)
    # shape (conditions, strengths, features)
    fits = (along[:, None] / (lengths[:, None] + penalties[:, None])) @ directions.transpose(0, 2, 1)
    errors = ((y[:, None] - fits @ x.transpose(0, 2, 1)) ** 2).mean(axis=(0, 2))
    best = int(errors.argmin())
    penalty = penalties[best] * np.eye(len(gram))
    return np.linalg.solve(gram + penalty, side), float(np.sqrt(errors[best]))


def predict_by_law(decisions: Decisions) -> Predicted:
    """Predict by a quadratic surface of the cooled losses of the other conditions in ln size and ln compute."""
    so_far, more = np.exp(decisions["log_compute"]), decisions["more"]
    ways = (("log_small", so_far * (1 + more), "continued"), ("log_large", so_far * more, "fresh"))
    surfaces = [_surface(decisions[size], np.log(compute)) for size, compute, _ in ways]
    losses = [decisions[name] for *_, name in ways]
    predicted, deviation = np.empty_like(decisions.margin), np.empty_like(decisions.margin)
    for left_out in range(len(predicted)):
        learnt = np.arange(len(predicted)) != left_out
        x = np.concatenate([each[learnt].reshape(-1, each.shape[-1]) for each in surfaces])
        y = np.concatenate([each[learnt].ravel() for each in losses])
        found = (surfaces[1] - surfaces[0]) @ np.linalg.lstsq(x, y, rcond=None)[0]
        predicted[left_out] = found[left_out]
        deviation[left_out] = np.sqrt(((found - decisions.margin)[learnt] ** 2).mean())
    return Predicted(predicted < 0, predicted, deviation)


def _surface(log_size: Decided, log_compute: Decided) -> Decided:
    terms = [np.ones_like(log_size), log_size, log_compute]
    return np.stack([*terms, log_size**2, log_size * log_compute, log_compute**2], axis=-1)
