"""Predictions of the margin for conditions that are left out, from size and step, the loss, controls and topology."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.extend import Indices, Matrix, Vector, derive_seed
from toposcope_experiments.scaling_decision.features import CONTROLS, LOSS, TOPOLOGY

STRENGTHS = np.geomspace(1e-3, 1e3, 13)  # of the ridge, times the number of rows
DRAWS = 20  # of twins, and of noise
SIZE_AND_STEP, LAW = "size and step", "sunk-cost law"
OF_LOSS, OF_CONTROLS = "loss", "loss and controls"
WITH_TOPOLOGY, OWN = "loss and topology", "loss, controls and topology"
OTHER_SEED, TWIN, NOISE = "other seed's topology", "twin's topology", "noise"
PLACEBOS = (OTHER_SEED, TWIN, NOISE)
"""In place of topology, beside loss and controls."""
SETS: dict[str, tuple[str, ...]] = {
    OF_LOSS: LOSS,
    OF_CONTROLS: (*LOSS, *CONTROLS),
    WITH_TOPOLOGY: (*LOSS, *TOPOLOGY),
    OWN: (*LOSS, *CONTROLS, *TOPOLOGY),
}


@dataclass(frozen=True, eq=False)
class Predicted:
    """Margins as predicted, shape (decisions,), in nats, and how far such predictions err within what they learn from.

    Both NaN where a rule only says which way.
    """

    margin: Vector
    deviation: Vector
    scale: Vector  # bool: whether to scale up


def predict_all(decisions: pl.DataFrame) -> dict[str, list[Predicted]]:
    """Return what each predictor says of each decision; of twins and noise, of each draw.

    Parameters
    ----------
    decisions : DataFrame
        Of `decision_table`.
    """
    table = Decisions(decisions)
    columns = {name: decisions[name].to_numpy() for name in SETS[OWN]}
    found = {SIZE_AND_STEP: [predict(table, np.empty((len(decisions), 0)))], LAW: [predict_by_law(table)]}
    for name, chosen in SETS.items():
        found[name] = [predict(table, np.column_stack([columns[each] for each in chosen]))]
    known = np.column_stack([columns[each] for each in SETS[OF_CONTROLS]])
    topology = np.column_stack([columns[each] for each in TOPOLOGY])
    drawn: Mapping[str, Callable[[int], Matrix]] = {
        OTHER_SEED: lambda _: topology[table.other_seed],
        TWIN: lambda draw: topology[table.twin(draw)],
        NOISE: lambda draw: _noise(draw, topology.shape),
    }
    for name, placebo in drawn.items():
        draws = range(1 if name == OTHER_SEED else DRAWS)
        found[name] = [predict(table, np.column_stack([known, placebo(draw)])) for draw in draws]
    return found


def _noise(draw: int, shape: tuple[int, ...]) -> Matrix:
    return np.random.default_rng(derive_seed(0, "noise", draw)).standard_normal(shape)


class Decisions:
    """Decisions as arrays: the margin, and by number condition, seed, group (pair and amount) and cell."""

    def __init__(self, table: pl.DataFrame) -> None:
        self.table = table
        self.margin = table["margin"].to_numpy()
        self.condition = _numbers(table, "condition")
        self.seed = _numbers(table, "seed")
        self.group = _numbers(table, "pair", "further")
        self.cell = _numbers(table, "pair", "further", "point")
        self.n_conditions = int(self.condition.max()) + 1
        self._places = {place: i for i, place in enumerate(zip(self.condition, self.seed, self.cell, strict=True))}

    @property
    def other_seed(self) -> Indices:
        """The same decision of the next seed of the condition."""
        return self._moved(self.condition, (self.seed + 1) % (int(self.seed.max()) + 1))

    def twin(self, draw: int) -> Indices:
        """Return the same decision of another condition, each condition's drawn at random."""
        rng = np.random.default_rng(derive_seed(0, "twins", draw))
        order = rng.permutation(self.n_conditions)
        # each of a cycle through all: none is its own
        following = np.empty_like(order)
        following[order] = np.roll(order, 1)
        return self._moved(following[self.condition], self.seed)

    def _moved(self, condition: Indices, seed: Indices) -> Indices:
        places = zip(condition, seed, self.cell, strict=True)
        return np.array([self._places[place] for place in places], dtype=np.int64)


def _numbers(table: pl.DataFrame, *names: str) -> Indices:
    """Return the place of each row among the different values of some columns."""
    return table.select(pl.struct(names).rank("dense") - 1).to_series().to_numpy().astype(np.int64)


def predict(table: Decisions, features: Matrix) -> Predicted:
    """Predict each condition's margins from the others by features, shape (decisions, features).

    Margins and features are differences from their mean in the cell over the conditions that are learnt from; a feature
    that is not known yet is at that mean.
    """
    margin, deviation = np.empty(len(table.margin)), np.empty(len(table.margin))
    for group in range(int(table.group.max()) + 1):
        rows = np.flatnonzero(table.group == group)
        cells = np.unique(table.cell[rows], return_inverse=True)[1]
        values = np.column_stack([table.margin, features])[rows]
        for left_out in range(table.n_conditions):
            out = table.condition[rows] == left_out
            base = _cell_means(values[~out], cells[~out])[cells]
            apart = np.nan_to_num(values - base)
            spread = apart[~out, 1:].std(axis=0)
            x, y = apart[:, 1:] / np.where(spread > 0, spread, 1.0), apart[:, 0]
            found, error = _ridge(x[~out], y[~out], table.condition[rows][~out])
            margin[rows[out]] = base[out, 0] + x[out] @ found
            deviation[rows[out]] = error
    return Predicted(margin, deviation, margin < 0)


def _cell_means(values: Matrix, cells: Indices) -> Matrix:
    """Return the mean of each column in each cell, shape (cells, columns), without what is not known."""
    known = np.isfinite(values)
    sums, counts = np.zeros((2, int(cells.max()) + 1, values.shape[1]))
    np.add.at(sums, cells, np.where(known, values, 0.0))
    np.add.at(counts, cells, known)
    return sums / np.maximum(counts, 1)


def _ridge(x: Matrix, y: Vector, conditions: Indices) -> tuple[Vector, float]:
    """Return coefficients of the strength that errs least on conditions left out, and the root of that mean square."""
    if not x.shape[1]:
        return np.empty(0), float(np.sqrt((y**2).mean()))
    members = [conditions == each for each in np.unique(conditions)]
    grams = np.stack([x[own].T @ x[own] for own in members])
    sides = np.stack([x[own].T @ y[own] for own in members])
    penalties = (STRENGTHS * len(y))[:, None, None] * np.eye(x.shape[1])
    # shape (conditions, strengths, features)
    others = (grams.sum(axis=0) - grams)[:, None] + penalties
    fits = np.linalg.solve(others, (sides.sum(axis=0) - sides)[:, None, :, None])[..., 0]
    squares = [((y[own][:, None] - x[own] @ fit.T) ** 2).mean(axis=0) for own, fit in zip(members, fits, strict=True)]
    errors = np.mean(squares, axis=0)
    best = int(errors.argmin())
    return np.linalg.solve(grams.sum(axis=0) + penalties[best], sides.sum(axis=0)), float(np.sqrt(errors[best]))


def predict_by_law(table: Decisions) -> Predicted:
    """Predict by a quadratic surface of the cooled losses of the other conditions in ln size and ln compute."""
    rows, further = table.table, np.exp(table.table["log_compute"].to_numpy())
    on = _surface(rows["log_small"].to_numpy(), np.log(further * (1 + rows["more"].to_numpy())))
    fresh = _surface(rows["log_large"].to_numpy(), np.log(further * rows["more"].to_numpy()))
    margin, deviation = np.empty(len(rows)), np.empty(len(rows))
    for left_out in range(table.n_conditions):
        out = table.condition == left_out
        x = np.concatenate([on[~out], fresh[~out]])
        y = np.concatenate([rows["continued"].to_numpy()[~out], rows["fresh"].to_numpy()[~out]])
        found = np.linalg.lstsq(x, y, rcond=None)[0]
        predicted = (fresh - on) @ found
        margin[out] = predicted[out]
        deviation[out] = np.sqrt(((predicted - table.margin)[~out] ** 2).mean())
    return Predicted(margin, deviation, margin < 0)


def _surface(log_size: Vector, log_compute: Vector) -> Matrix:
    terms = [np.ones_like(log_size), log_size, log_compute]
    return np.column_stack([*terms, log_size**2, log_size * log_compute, log_compute**2])
