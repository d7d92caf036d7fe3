"""One quantity of every layer over training, and the cells of its map on the page."""

import math
import sqlite3
from array import array
from collections.abc import Sequence
from typing import Any

from toposcope.report.live import database as db


class LayerTable:
    """One quantity of every layer at every measured step, which grows with the run."""

    def __init__(self, layers: Sequence[str]) -> None:
        self.layers = list(layers)
        self.steps = array("q")
        self.values = array("f")

    def extend(self, c: sqlite3.Connection, run: str, quantity: db.Quantity, steps: Sequence[int]) -> None:
        """Append steps."""
        for step in steps:
            found = db.of_layers(c, run, step, quantity)
            if found:
                self.steps.append(step)
                self.values.extend(found.get(layer, float("nan")) for layer in self.layers)

    def cut(self, step: int) -> None:
        """Remove a step and all later ones."""
        kept = sum(1 for each in self.steps if each < step)
        del self.steps[kept:]
        del self.values[kept * len(self.layers) :]


def layer_map(table: LayerTable, at_most: int) -> tuple[dict[str, list[Any]], int]:
    """Return the cells of a layer map, and the number of steps per column.

    A cell shows the value within its column that differs most from the layer's mean, so that a spike at one step stays
    visible.
    """
    n, n_layers = len(table.steps), len(table.layers)
    width = max(1, -(-n // at_most))
    cells: dict[str, list[Any]] = {"layer": [], "step": [], "value": []}
    ends = [min(start + width, n) for start in range(0, n, width)]
    for place, layer in enumerate(table.layers):
        values = table.values[place::n_layers]
        known = [v for v in values if math.isfinite(v)]
        mean = sum(known) / len(known) if known else 0.0
        for start, end in zip(range(0, n, width), ends, strict=True):
            inside = [v for v in values[start:end] if math.isfinite(v)]
            value = max(inside, key=lambda v: abs(v - mean)) if inside else None
            cells["layer"].append(layer)
            cells["step"].append(table.steps[end - 1])
            cells["value"].append(None if value is None else float(f"{value:.5g}"))
    return cells, width
