"""The loss of a network as a Pfaffian function of its weights: the length and the degrees of its chain.

The chain has the activations of every unit on every sample, and what a softmax, a norm and cross-entropy need. Degrees
are followed through the network; SymPy finds the same in the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from toposcope.extend import ToposcopeError, as_count, choices, shown
from toposcope_experiments.betti_bounds.betti_bounds import PfaffianFormat

Activation = Literal["sigmoid", "tanh", "gelu"]
Loss = Literal["squared_error", "cross_entropy"]
LastLayer = Literal["linear", "sigmoid"]

MAX_LAYERS = 100_000
"""Degrees are followed layer by layer, some microseconds each."""


@dataclass(frozen=True)
class _Signal:
    """A polynomial in the weights and the chain: its degree, and that of its derivatives."""

    degree: int
    slope: int

    def __mul__(self, other: _Signal) -> _Signal:
        return _Signal(self.degree + other.degree, max(self.degree + other.slope, self.slope + other.degree))

    def __or__(self, other: _Signal) -> _Signal:
        """Return the sum."""
        return _Signal(max(self.degree, other.degree), max(self.slope, other.slope))


DATA = _Signal(0, -1)
WEIGHT = _Signal(1, 0)


class _Chain:
    """A Pfaffian chain, by its length and degree."""

    def __init__(self) -> None:
        self.length, self.alpha = 0, 0

    def add(self, count: int, slope: int) -> _Signal:
        """Append functions whose derivatives have some degree."""
        self.length, self.alpha = self.length + count, max(self.alpha, slope)
        return _Signal(1, slope)

    def activated(self, z: _Signal, activation: Activation, count: int) -> _Signal:
        """Append what the activations of some units need, and return their outputs."""
        if activation != "gelu":  # s' = s (1 - s), t' = 1 - t^2
            return self.add(count, 2 + z.slope)
        self.add(count, 1 + z.degree + z.slope)  # the density: p' = -z p z'
        return z * self.add(count, 1 + z.slope)  # the distribution: P' = p z'

    def softmax(self, z: _Signal, entries: int, rows: int) -> _Signal:
        """Append e^z, and the reciprocal r of its sum in each row, r' = -r^2 sum(e^z z'); return e^z r."""
        return self.add(entries, 1 + z.slope) * self.add(rows, 3 + z.slope)

    def cross_entropy(self, z: _Signal, entries: int, rows: int) -> _Signal:
        """Append a softmax and the logarithm u of its sum in each row, u' = r sum(e^z z'); return u - z."""
        self.softmax(z, entries, rows)
        return self.add(rows, 2 + z.slope) | z

    def normalised(self, x: _Signal, rows: int, *, gain: bool) -> _Signal:
        """Append y = (v + e)^(-1/2) of the variance v of each row, y' = -y^3 v' / 2; return (x - mean) y, scaled."""
        y = self.add(rows, 3 + (x * x).slope)
        return x * y * WEIGHT | WEIGHT if gain else x * y

    def format(self, n: int, loss: _Signal) -> PfaffianFormat:
        return PfaffianFormat(n, self.alpha, loss.degree, self.length)


def mlp_format(
    widths: Sequence[int],
    *,
    samples: int,
    activation: Activation = "tanh",
    loss: Loss = "squared_error",
    last: LastLayer = "linear",
    bias: bool = True,
) -> PfaffianFormat:
    """Return the format of the loss of a multilayer perceptron on some samples, as a function of its weights.

    An l2 term, means in place of sums, and skip connections that add the outputs of earlier layers leave it as it is.

    Parameters
    ----------
    widths : sequence of int
        Of the inputs, each hidden layer and the outputs.
    samples : int
        Each has activations of its own: the chain has one function for each unit and sample, with GELU two.
    activation : "sigmoid", "tanh" or "gelu"
        Of the hidden layers; GELU is the exact one.
    loss : "squared_error" or "cross_entropy"
    last : "linear" or "sigmoid"
        With cross-entropy, a softmax over the outputs, or each output's own.
    bias : bool

    Raises
    ------
    ToposcopeError
        For an activation that is no Pfaffian function here, such as ReLU, and a count out of range.

    Examples
    --------
    >>> mlp_format([2, 3, 3, 1], samples=10)
    PfaffianFormat(n=25, alpha=5, beta=4, length=60)
    """
    _check("activation", activation, Activation)
    _check("loss", loss, Loss)
    _check("last", last, LastLayer)
    bias = _as_flag(bias, "bias")
    sizes = _as_counts(widths, "widths")
    samples = as_count(samples, "samples", 1)
    if len(sizes) < 2:
        raise ToposcopeError(f"widths: {sizes} names no layer; give those of the inputs and the outputs at least")
    outputs = samples * sizes[-1]
    if loss == "cross_entropy" and last == "linear" and sizes[-1] == 1:
        raise ToposcopeError('widths: a softmax over one output is always 1; give two outputs, or last="sigmoid"')
    chain, y = _Chain(), DATA
    for width in sizes[1:-1]:
        y = chain.activated(y * WEIGHT, activation, samples * width)
    z = y * WEIGHT
    if loss == "squared_error":
        error = z if last == "linear" else chain.activated(z, "sigmoid", outputs)
        total = error * error
    elif last == "linear":
        total = chain.cross_entropy(z, outputs, samples)
    else:
        chain.activated(z, "sigmoid", outputs)
        total = chain.add(outputs, 1 + z.slope) | z  # u = -log s, u' = -(1 - s) z'; of a target t, u + (1 - t) z
    n = sum((before + bias) * after for before, after in pairwise(sizes))
    return chain.format(n, total)


def transformer_format(
    *,
    layers: int,
    width: int,
    heads: int,
    context: int,
    vocabulary: int,
    tokens: int | Sequence[int],
    gain: bool = True,
    bias: bool = True,
) -> PfaffianFormat:
    """Return the format of the cross-entropy of a transformer of the family, as a function of its weights.

    A causal, pre-norm transformer with learned positions, softmax attention, two linear maps around an exact GELU, four
    times as wide, a final norm, and a head tied to the embedding.

    Parameters
    ----------
    layers, width, heads, context, vocabulary : int
    tokens : int or sequence of int
        How many tokens are predicted, in windows as long as the context; or how many in each window.
    gain : bool
        Whether the norms have a learned gain and bias.
    bias : bool
        Whether anything has a bias; without, norms have their gain alone.

    Raises
    ------
    ToposcopeError
        If a count is out of range, a window is longer than the context, or there are over 100,000 layers.

    Examples
    --------
    >>> from toposcope_experiments.betti_bounds.betti_bounds import betti_bound
    >>> tiny = transformer_format(layers=1, width=8, heads=1, context=128, vocabulary=128, tokens=1000)
    >>> tiny
    PfaffianFormat(n=2936, alpha=83, beta=15, length=261252)
    >>> f"{betti_bound(tiny).digits:,}"
    '10,274,502,103'
    """
    sizes = {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": vocabulary}
    layers, width, heads, context, vocabulary = (as_count(value, name, 1) for name, value in sizes.items())
    if width % heads:
        raise ToposcopeError(f"heads: {heads} do not divide a width of {width}")
    if layers > MAX_LAYERS:
        raise ToposcopeError(f"layers: expected at most {MAX_LAYERS:,}, got {layers:,}")
    gain, bias = _as_flag(gain, "gain"), _as_flag(bias, "bias")
    if isinstance(tokens, (Sequence, np.ndarray)):
        windows = Counter(_as_counts(tokens, "tokens"))
    else:
        whole, rest = divmod(as_count(tokens, "tokens", 1), context)
        windows = Counter({context: whole, rest: int(rest > 0)})
    if not windows or max(windows) > context:
        raise ToposcopeError(f"tokens: windows of 1 to {context} tokens, the context, are needed; cut them so")
    rows = sum(window * n for window, n in windows.items())
    entries = sum(window * (window + 1) // 2 * n for window, n in windows.items())
    chain, x = _Chain(), WEIGHT
    for _ in range(layers):
        y = chain.normalised(x, rows, gain=gain) * WEIGHT  # queries, keys and values
        x |= chain.softmax(y * y, heads * entries, heads * rows) * y * WEIGHT
        y = chain.normalised(x, rows, gain=gain) * WEIGHT
        x |= chain.activated(y, "gelu", 4 * width * rows) * WEIGHT
    total = chain.cross_entropy(chain.normalised(x, rows, gain=gain) * WEIGHT, vocabulary * rows, rows)
    block = 12 * width**2 + 9 * width * bias
    norms = (2 * layers + 1) * width * (1 + bias) * gain
    return chain.format((vocabulary + context) * width + layers * block + norms, total)


def _as_counts(values: Any, name: str) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise ToposcopeError(f"{name}: expected a sequence of whole numbers, got {shown(values)}")
    return [as_count(value, f"{name}[{k}]", 1) for k, value in enumerate(values)]


def _as_flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ToposcopeError(f"{name}: expected True or False, got {shown(value)}")
    return bool(value)


def _check(name: str, value: Any, known: object) -> None:
    names: tuple[str, ...] = get_args(known)
    if isinstance(value, str) and value in names:
        return
    if str(value) in ("relu", "leaky_relu"):
        raise ToposcopeError(
            f"{name} {value!r}: it has a kink, so the loss is Pfaffian only piece by piece; with squared error bounds "
            f"of semialgebraic sets hold (Milnor 1964), not this one. Choose from {', '.join(names)}"
        )
    raise ToposcopeError(f"{name} {shown(value)}: {choices(str(value), names)}")
