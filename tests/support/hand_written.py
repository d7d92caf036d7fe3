"""A generator of networks that people write by hand, in either orientation, with and without evidence of it."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
NAMINGS = {
    "W1, b1": lambda k, n: (f"W{k + 1}", f"b{k + 1}"),
    "w_1, bias_1": lambda k, n: (f"w_{k + 1}", f"bias_{k + 1}"),
    "layer1_w, layer1_b": lambda k, n: (f"layer{k + 1}_w", f"layer{k + 1}_b"),
    "theta, intercept": lambda k, n: (f"Theta{k + 1}", f"intercept{k + 1}"),
    "modules": lambda k, n: (f"net.{k}.W", f"net.{k}.b"),
    "lists of sklearn": lambda k, n: (f"coefs_.{k}", f"intercepts_.{k}"),
    "TensorFlow": lambda k, n: (f"dense_{k}/weights:0", f"dense_{k}/biases:0"),
    "pairs of JAX": lambda k, n: (f"{k}.0", f"{k}.1"),
    "numpy.savez": lambda k, n: (f"arr_{2 * k}", f"arr_{2 * k + 1}"),
    "savez, matrices first": lambda k, n: (f"arr_{k}", f"arr_{n + k}"),
}
"""Names of the weight and of the bias of matrix k of n."""
BIASES = ("plain", "row", "column", "last row", "none")


@dataclass
class Written:
    """Tensors as stored, the matrices that they are as (outputs, inputs), and which of them nothing shows."""

    tensors: dict[str, Array] = field(default_factory=dict)
    right: dict[str, Array] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


def perceptron(rng: np.random.Generator, sizes: list[int], naming: str, biases: str, *, turned: bool) -> Written:
    """A multilayer perceptron of given widths; its biases are vectors, rows, columns, in the matrices, or not there."""
    out, n = Written(), len(sizes) - 1
    # A bias in the matrix is the last of the axis of inputs.
    inputs = [size + (biases == "last row") for size in sizes[:-1]]
    shapes = list(zip(sizes[1:], inputs, strict=True))
    for k, shape in enumerate(shapes):
        weight, bias = NAMINGS[naming](k, n)
        matrix = rng.standard_normal(shape).astype(np.float32)
        out.right[weight] = matrix
        out.tensors[weight] = np.ascontiguousarray(matrix.T) if turned else matrix
        if biases in {"plain", "row", "column"}:
            axes = {"plain": (-1,), "row": (1, -1), "column": (-1, 1)}[biases]
            out.tensors[bias] = rng.standard_normal(shape[0]).astype(np.float32).reshape(axes)
    stored = [out.tensors[name].shape for name in out.right]
    if not _has_evidence(stored, sizes, biases):
        out.unknown = set(out.right)
    return out


def _has_evidence(stored: list[tuple[int, ...]], sizes: list[int], biases: str) -> bool:
    """Return whether a bias fits one axis only, or all shapes chain one way round only, with or without biases."""
    has_own = biases in {"plain", "row", "column"}
    if has_own and any(a != b for a, b in pairwise(sizes)):
        return True
    ways = [(axis, extra) for axis in (0, 1) for extra in (0, 1)]
    fits = {axis for axis, extra in ways if all(a[axis] + extra == b[1 - axis] for a, b in pairwise(stored))}
    return not has_own and len(fits) == 1
