"""Euclidean distances between checkpoints as one long vector each, two blocks of rows in memory at a time."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.kernels.magnitudes import largest_magnitude
from toposcope.probes.probe import Weights
from toposcope.probes.row_blocks import Rows, Widening, largest_entry, pieces, unit_of
from toposcope.typing import Matrix

MAX_KNOWN = 1 << 18
"""Distances a process remembers: those of all pairs of 700 checkpoints."""

_known: dict[tuple[str, str], float] = {}
"""By the contents of the two: the checkpoints of a run are measured one after another, each with all before it."""


def distance_matrix(checkpoints: Sequence[Weights]) -> Matrix:
    """Return the distances between checkpoints, shape (n, n), float64; each pair is computed once in a process.

    Parameters
    ----------
    checkpoints : sequence of Weights

    Raises
    ------
    ToposcopeError
        If a layer cannot be read or is not finite, two checkpoints do not have the same layers, or a distance is
        beyond the range of float64.
    """
    matrix = np.zeros((len(checkpoints), len(checkpoints)))
    for i, one in enumerate(checkpoints):
        for j, other in enumerate(checkpoints[:i]):
            matrix[i, j] = matrix[j, i] = _distance(one, other)
    return matrix


def is_finite(weights: Weights) -> bool:
    """Return whether all entries of all layers are finite.

    Raises
    ------
    ToposcopeError
        If a layer cannot be read.
    """
    return all(math.isfinite(largest_magnitude(layer.read_narrow())) for layer in weights.open().values())


def check_finite(weights: Weights) -> None:
    """Refuse weights that cannot be read or are not finite, naming the layer.

    Raises
    ------
    ToposcopeError
    """
    for layer in weights.open().values():
        largest_entry(layer)


def _distance(one: Weights, other: Weights) -> float:
    pair = (min(one.content, other.content), max(one.content, other.content))
    if pair not in _known:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[pair] = _computed(one, other)
    return _known[pair]


def _computed(one: Weights, other: Weights) -> float:
    first, second = one.open(), other.open()
    for name in first.keys() ^ second.keys():
        without = next(iter((second if name in first else first).values())).source
        raise ToposcopeError(
            f"{without}: has no layer {name}, which another checkpoint of the run has; select other steps"
        )
    total = math.hypot(*(_layer_distance(layer, second[name]) for name, layer in first.items()))
    if not math.isfinite(total):
        raise ToposcopeError(f"{next(iter(first.values())).source}: its distance from another checkpoint overflows")
    return total


def _layer_distance(layer: Layer, other: Layer) -> float:
    if layer.shape != other.shape:
        raise ToposcopeError(
            f"{layer.source}: layer {layer.name} has shape {layer.shape}, and {other.shape} in another checkpoint of "
            "the run; select other steps"
        )
    unit = unit_of(cache(largest_entry), layer, other)
    rows, other_rows, widen, widen_other = Rows(layer), Rows(other), Widening(unit), Widening(unit)
    sums = []
    for block in rows.blocks():
        W, V = widen(rows.read(*block)), widen_other(other_rows.read(*block))
        sums += [float(np.square(w - v).sum()) for w, v in zip(pieces(W), pieces(V), strict=True)]
    return math.sqrt(math.fsum(sums)) * unit
