"""Matrices inside weights: a convolution unrolled, the parts and heads of a fused attention matrix; nothing copied."""

import math
from typing import Any, Literal

import numpy as np

from toposcope.errors import ToposcopeError, message_of
from toposcope.homology.arrays import as_count
from toposcope.typing import Indices

PARTS = ("q", "k", "v")


def unrolled(weight: Any) -> Any:
    """Return a convolution's weight as the matrix with one filter a row, (out, in * kernel).

    Parameters
    ----------
    weight : ndarray or torch.Tensor, shape ``(out, in, *kernel)``
        A view of it is returned if it is contiguous.

    Raises
    ------
    ToposcopeError
        If it has fewer than two dimensions.

    Notes
    -----
    This is the matrix that multiplies unrolled input patches. Rieck et al. 2019 (appendix) unroll the *input* instead,
    one sparse matrix for each pair of input map and filter, whose size depends on the size of the input, which weights
    alone do not determine.
    """
    shape = tuple(getattr(weight, "shape", ()))
    if len(shape) < 2 or not hasattr(weight, "reshape"):
        raise ToposcopeError(
            f"weight: expected an array or tensor (out, in, *kernel), got {type(weight).__name__} of shape {shape}"
        )
    try:
        return weight.reshape(shape[0], math.prod(shape[1:]))
    except (RuntimeError, NotImplementedError) as error:  # a sparse tensor
        reason = message_of(error)
        raise ToposcopeError(f"weight: of shape {shape}, cannot be unrolled: {reason}") from error


def qkv_rows(
    n_rows: int,
    n_heads: int,
    *,
    layout: Literal["stacked", "interleaved"] = "stacked",
    per: Literal["part", "head"] = "part",
) -> dict[str, Indices]:
    """Return which rows of a fused query-key-value matrix belong to which part or head.

    Parameters
    ----------
    n_rows : int
        Rows of the fused matrix with one output a row (transpose GPT-2's): three parts of equally many heads.
    n_heads : int
    layout : "stacked" or "interleaved"
        All of q, then k, then v (GPT-2, our family); or q, k, v of the first head, then of the second (GPT-NeoX).
    per : "part" or "head"

    Returns
    -------
    dict of ndarray, int64
        For `neural_persistence(W, rows=...)`; by ``q``, ``k``, ``v``, or ``q.0``, ``q.1`` and so on.

    Raises
    ------
    ToposcopeError
        If the rows do not divide into parts and heads.
    """
    n_rows, n_heads = as_count(n_rows, "n_rows", 1), as_count(n_heads, "n_heads", 1)
    if n_rows % (3 * n_heads):
        raise ToposcopeError(f"n_rows: expected three parts of {n_heads} heads, but {n_rows} rows do not divide so")
    if layout not in ("stacked", "interleaved"):
        raise ToposcopeError(f"layout: expected 'stacked' or 'interleaved', got {layout!r}")
    if per not in ("part", "head"):
        raise ToposcopeError(f"per: expected 'part' or 'head', got {per!r}")
    width = n_rows // (3 * n_heads)
    numbers = np.arange(n_rows)
    rows = (
        numbers.reshape(3, n_heads, width)
        if layout == "stacked"
        else numbers.reshape(n_heads, 3, width).transpose(1, 0, 2)
    )
    if per == "part":
        return {part: rows[k].ravel() for k, part in enumerate(PARTS)}
    return {f"{part}.{head}": rows[k, head] for k, part in enumerate(PARTS) for head in range(n_heads)}
