"""The nearest points outside one's own component, for many points at once, on the device where the points lie.

The searches of `boruvka` as operations of torch, with the same bounds. The products are made in full float32
or float64: the shortened formats that a device may use for float32 (TF32, bfloat16) would void the bound, so they are
switched off meanwhile.

Cost: O(n d) a row, most of it one matrix product; memory for one block of rows next to three copies of the points. Only
the lists leave the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toposcope.kernels.boruvka import (
    DEVICE_BOUNDS_BYTES,
    MIN_POINTS_PER_SEARCH,
    N_LISTED,
    Neighbours,
    made_on_first_call,
    rounding,
    tree_by_searches,
)
from toposcope.kernels.prim import Tree
from toposcope.kernels.sets import Parents
from toposcope.typing import Indices


def device_tree(points: Tensor) -> Tree | None:
    """Return the Euclidean minimum spanning tree, as `toposcope.kernels.boruvka.boruvka_tree` does."""
    return tree_by_searches(
        len(points),
        [
            made_on_first_call(partial(TorchProductSearch, points, np.float32)),
            made_on_first_call(partial(TorchProductSearch, points, np.float64)),
            partial(torch_difference_search, points),
        ],
        limit=len(points) // MIN_POINTS_PER_SEARCH,
    )


class TorchProductSearch:
    """Search by products in one precision."""

    def __init__(self, points: Tensor, dtype: type[np.floating[Any]]) -> None:
        n, d = points.shape
        relative, absolute = rounding(d, dtype)
        centred = points - points.mean(dim=0)
        squared_norms = (centred**2).sum(dim=1)
        margin = (relative * squared_norms).sqrt()
        of_row = torch.cat([-2 * centred, torch.stack([-2 * margin, torch.ones_like(margin)], dim=1)], dim=1)
        of_column = torch.cat([centred, torch.stack([margin, (1 - relative) * squared_norms], dim=1)], dim=1)
        precision = torch.float32 if dtype is np.float32 else torch.float64
        self._points = points
        self._left, self._right = of_row.to(precision), of_column.to(precision)
        self._own = (1 - relative) * squared_norms - absolute
        self._height = max(1, DEVICE_BOUNDS_BYTES // max(self._left.itemsize * n, 8 * N_LISTED * d))

    def __call__(self, rows: Indices, labels: Parents) -> Neighbours:
        """Return the neighbours of some points outside their components."""
        with torch.no_grad(), _full_precision(self._points.device.type):
            components = torch.from_numpy(labels).to(self._points.device)
            chosen = torch.from_numpy(rows).to(self._points.device)
            return _on_host([self._search(part, components) for part in torch.split(chosen, self._height)])

    def _search(self, rows: Tensor, components: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bounds = self._left[rows] @ self._right.T
        bounds.masked_fill_(components[rows].unsqueeze(1) == components, torch.inf)
        least = bounds.topk(min(N_LISTED, len(components)), largest=False)
        squares = (self._points[least.indices] - self._points[rows].unsqueeze(1)).square_().sum(dim=2)
        squares, order = squares.masked_fill_(least.values.isinf(), torch.inf).sort(dim=1)
        indices = least.indices.gather(1, order).masked_fill_(squares.isinf(), -1)
        return indices, squares, least.values[:, -1].double() + self._own[rows]


def torch_difference_search(points: Tensor, rows: Indices, labels: Parents) -> Neighbours:
    """Return the neighbours of some points outside their components, from coordinate differences alone."""
    n, d = points.shape
    with torch.no_grad():
        components = torch.from_numpy(labels).to(points.device)
        chosen = torch.from_numpy(rows).to(points.device)
        blocks = []
        height = max(1, DEVICE_BOUNDS_BYTES // (8 * n * d))
        width = max(1, DEVICE_BOUNDS_BYTES // (8 * n * height))
        for part in torch.split(chosen, height):
            squares = points.new_zeros((len(part), n))
            for coordinates in torch.split(points, width, dim=1):
                squares += (coordinates[part].unsqueeze(1) - coordinates).square_().sum(dim=2)
            squares.masked_fill_(components[part].unsqueeze(1) == components, torch.inf)
            least = squares.topk(min(N_LISTED, n), largest=False)
            indices = least.indices.masked_fill(least.values.isinf(), -1)
            blocks.append((indices, least.values, least.values[:, -1]))
        return _on_host(blocks)


def _on_host(parts: list[tuple[Tensor, Tensor, Tensor]]) -> Neighbours:
    """Join blocks, and fill the lists of fewer than `N_LISTED` points."""
    indices, squares, beyond = (torch.cat(part) for part in zip(*parts, strict=True))
    missing = N_LISTED - indices.shape[1]
    if missing:
        beyond = torch.full_like(beyond, torch.inf)
    return Neighbours(
        np.asarray(torch.nn.functional.pad(indices, (0, missing), value=-1).int().cpu()),
        np.asarray(torch.nn.functional.pad(squares, (0, missing), value=torch.inf).cpu()),
        np.asarray(beyond.cpu()),
    )


@contextmanager
def _full_precision(device_type: str) -> Iterator[None]:
    """Let float32 products be made in float32, whatever the settings of the process."""
    # torch 2.9 and later: a setting for each library next to the older one for all.
    libraries = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    newer: list[Any] = [library for library in libraries if hasattr(library, "fp32_precision")]
    before = [library.fp32_precision for library in newer]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set the newer way
        older = "highest"
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(older)
        for library, precision in zip(newer, before, strict=True):
            library.fp32_precision = precision
