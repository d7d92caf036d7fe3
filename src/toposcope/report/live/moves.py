"""What the measured layers show: whether they learn, and which of their quantities changed most."""

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from toposcope.report.live import database as db
from toposcope.report.naming import feature_words, layer_labels

MOVING = (
    *("neural_persistence np_mean", "rips H0.total", "controls stable_rank", "training weight_norm"),
    *("training dead_units", "activations attention_logit_max", "activations attention_entropy"),
)
"""Quantities of layers that are compared; those that follow the learning rate, such as updates, always move."""
MAX_COMPARED = 12  # measured steps of the second half of a run that are read
MIN_COMPARED = 6
N_LEVEL = 3  # steps whose median is a level
MIN_NOISE = 4.0  # change relative to the median difference of consecutive values from which it counts
MIN_CHANGE = 0.02  # least relative change
MAX_MOVES, MAX_OF_QUANTITY = 4, 2


@dataclass(frozen=True)
class Move:
    """A quantity of a layer that changed."""

    layer: str
    label: str  # of the layer
    quantity: str  # in words
    before: float
    after: float
    since: int  # step
    n_layers: int = 1  # layers in which the quantity changed in the same direction

    @property
    def text(self) -> str:
        """The change in words."""
        words = self.quantity.removesuffix(", measured")
        words = f"{words[:1].lower()}{words[1:]}" if words[1:2].islower() else words
        verb = "rising" if self.after > self.before else "falling"
        others = f", {verb} in {self.n_layers} layers" if self.n_layers > 1 else ""
        return f"{words} {self.before:.3g} → {self.after:.3g} since step {self.since:,}{others}"


def moves(c: sqlite3.Connection, run: str, quantities: Mapping[str, db.Quantity], keys: Iterable[str]) -> list[Move]:
    """Return the quantities of layers that changed most over the second half of a run."""
    known = set(keys)
    found: list[Move] = []
    for key in (key for key in MOVING if key in known):
        quantity = quantities[key]
        steps = _steps(c, run, quantity)
        if len(steps) < MIN_COMPARED:
            continue
        by_step = [db.of_layers(c, run, step, quantity) for step in steps]
        names = list(dict.fromkeys(layer for row in by_step for layer in row))
        labels = dict(zip(names, layer_labels(names), strict=True))
        values = {layer: [row[layer] for row in by_step if layer in row] for layer in names}
        found += _of_quantity(feature_words(key), values, labels, steps[0])
    found.sort(key=lambda move: -abs(_relative(move.before, move.after)))
    return found[:MAX_MOVES]


def _steps(c: sqlite3.Connection, run: str, quantity: db.Quantity) -> list[int]:
    """Return some steps of the second half at which a quantity was measured in the whole network."""
    steps = [row.step for row in db.measured(c, run, "network", quantity, -1, 1 << 62)]
    late = [step for step in steps if 2 * step >= steps[-1]]
    n = min(MAX_COMPARED, len(late))
    return [late[i * (len(late) - 1) // (n - 1)] for i in range(n)] if n > 1 else []


def _of_quantity(
    words: str, values: Mapping[str, Sequence[float]], labels: Mapping[str, str], since: int
) -> list[Move]:
    """Return the layers in which a quantity changed most, by more than its noise."""
    ends = {layer: change for layer, of in values.items() if (change := _change(of)) is not None}
    ranked = sorted(ends, key=lambda layer: -abs(_relative(*ends[layer])))
    signs = [after > before for before, after in ends.values()]
    return [
        Move(layer, labels[layer], words, before, after, since, signs.count(after > before))
        for layer in ranked[:MAX_OF_QUANTITY]
        for before, after in [ends[layer]]
    ]


def _change(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the first and the last level of a series, if they differ by more than its noise."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < MIN_COMPARED:
        return None
    before, after = median(finite[:N_LEVEL]), median(finite[-N_LEVEL:])
    noise = median(abs(b - a) for a, b in pairwise(finite))
    if abs(after - before) <= MIN_NOISE * noise or abs(_relative(before, after)) < MIN_CHANGE:
        return None
    return before, after


def _relative(before: float, after: float) -> float:
    return (after - before) / max(abs(before), abs(after), 1e-300)
