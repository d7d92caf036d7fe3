"""Largest magnitudes of a tensor and where they are, from blocks of its values."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

N_LARGEST = 8
"""Values of a tensor that are kept."""
CHUNK = 4096
"""Values whose largest magnitude is found together, without a copy; only the chunks of the largest are sorted."""


class LargestValues:
    """The `N_LARGEST` values of largest magnitude among all that were added."""

    def __init__(self) -> None:
        self._values = torch.empty(0, dtype=torch.float64)
        self._positions = torch.empty(0, dtype=torch.int64)

    def add(self, values: Tensor, begin: int) -> None:
        """Add finite values, shape (n,); the first of them is at position `begin` of the tensor."""
        whole = len(values) // CHUNK * CHUNK
        chunks = values[:whole].view(-1, CHUNK)
        if len(chunks) > N_LARGEST:
            # Two passes are thirty times faster than torch.aminmax, which is not vectorised along an axis.
            best = torch.maximum(chunks.amax(1), -chunks.amin(1)).topk(N_LARGEST).indices
            self._merge(chunks[best].flatten(), (begin + best[:, None] * CHUNK + torch.arange(CHUNK)).flatten())
        else:
            whole = 0
        rest = values[whole:]
        self._merge(rest, torch.arange(begin + whole, begin + len(values)))

    def _merge(self, values: Tensor, positions: Tensor) -> None:
        best = values.abs().topk(min(N_LARGEST, len(values))).indices
        both = torch.cat([self._values, values[best].to(torch.float64)])
        where = torch.cat([self._positions, positions[best]])
        order = both.abs().argsort(descending=True, stable=True)[:N_LARGEST]
        self._values, self._positions = both[order], where[order]

    def result(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return values, largest magnitude first, and their positions, each of at most `N_LARGEST`."""
        return self._values.numpy(), self._positions.numpy()
