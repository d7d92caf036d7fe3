"""The updates of a pack, some hundred steps without a word between the processor and its device.

Everything that differs from step to step is in tables on the device, and the row of the tables is counted there too. On
a GPU one update is compiled, captured as a CUDA graph and replayed: a step of small models is otherwise many times as
long as its arithmetic. This path has not run on a GPU yet; the compiled functions were compared with the plain ones on
a CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.family.dropout import dropout_masks, mask_keys
from toposcope.family.run import TrainingOptions
from toposcope.family.sizes import ModelSize
from toposcope.family.together.feed import Feed
from toposcope.family.together.model import Layout, losses
from toposcope.family.together.optimizer import Factors, clip, update

BLOCK_STEPS = 250
"""Steps whose tables are made at once."""
WARM_UP = 3
"""Updates before a graph is captured, as torch asks for."""


@dataclass(frozen=True)
class PackState:
    """What updates change: weights and the moving averages of gradients and of their squares.

    Attributes
    ----------
    weights, first, second : Tensor, shape (runs, parameters)
    """

    weights: Tensor
    first: Tensor
    second: Tensor


class Updates:
    """Updates of all runs of a pack, in place.

    Parameters
    ----------
    size : ModelSize
    options : sequence of TrainingOptions
        Of one batch size.
    state : PackState
    feed : Feed
    """

    def __init__(self, size: ModelSize, options: Sequence[TrainingOptions], state: PackState, feed: Feed) -> None:
        self._size, self._options, self._state, self._feed = size, options, state, feed
        device, runs = state.weights.device, len(options)
        self._layout = Layout(size)
        self._limits = torch.tensor([each.gradient_clip for each in options], device=device)
        drops = [each.dropout for each in options]
        self._drops = torch.tensor(drops, dtype=torch.float64, device=device) if any(drops) else None
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self._starts = torch.zeros((BLOCK_STEPS, runs, options[0].batch_size), dtype=torch.int64, device=device)
        self._keys = torch.zeros((BLOCK_STEPS, runs, 2), dtype=torch.int32, device=device)
        self._decay, self._step_size = torch.zeros((2, BLOCK_STEPS, runs, 1), device=device)
        self._spread = torch.ones((BLOCK_STEPS, 1, 1), device=device)
        self._losses, self._norms = torch.zeros((2, BLOCK_STEPS, runs), device=device)
        self._on_gpu = device.type == "cuda"
        self._forward = torch.compile(self._losses_of) if self._on_gpu else self._losses_of
        self._update = torch.compile(clipped_update) if self._on_gpu else clipped_update
        self._replay: Callable[[], None] | None = None

    def advance(self, begin: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Make the updates after `begin` up to `stop`; return losses and norms of gradients, shape (steps, runs)."""
        parts = [self._block(first, min(first + BLOCK_STEPS, stop)) for first in range(begin, stop, BLOCK_STEPS)]
        found, norms = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return found, norms

    def _block(self, begin: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        count = stop - begin
        self._starts[:count] = self._feed.starts(begin, stop)
        if self._drops is not None:
            seeds = [each.seed for each in self._options]
            self._keys[:count] = torch.stack([mask_keys(seeds, step) for step in range(begin + 1, stop + 1)])
        factors = Factors.of(self._options, begin, stop)
        self._decay[:count], self._step_size[:count] = factors.decay, factors.step_size
        self._spread[:count] = factors.spread
        self._row.zero_()
        one = (self._replay or self._captured()) if self._on_gpu else self._one_update
        for _ in range(count):
            one()
        return self._losses[:count].double().cpu().numpy(), self._norms[:count].double().cpu().numpy()

    def _one_update(self) -> None:
        """Make the update of one row of the tables, and go on to the next row."""
        starts, keys, decay, step_size, spread = (
            table.index_select(0, self._row)[0]
            for table in (self._starts, self._keys, self._decay, self._step_size, self._spread)
        )
        weights = self._state.weights.detach().requires_grad_()
        found = self._forward(weights, *self._feed.batch(starts), keys)
        # The gradient of the sum of the losses is that of each run's own.
        (gradients,) = torch.autograd.grad(found.sum(), weights)
        with torch.no_grad():
            state = self._state
            norms = self._update(
                state.weights, state.first, state.second, gradients, self._limits, decay, step_size, spread
            )
            self._losses.index_copy_(0, self._row, found.detach()[None])
            self._norms.index_copy_(0, self._row, norms[None])
            self._row.add_(1)

    def _losses_of(self, weights: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        masks = None
        if self._drops is not None:
            masks = dropout_masks(keys, self._drops, self._size, *inputs.shape[1:])
        return losses(self._size, self._layout.named(weights), inputs, targets, masks)

    def _captured(self) -> Callable[[], None]:
        """Return the replay of one update as a CUDA graph; the updates of the warm-up are undone."""
        changed = (self._state.weights, self._state.first, self._state.second, self._row)
        before = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._one_update()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one_update()
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)
        self._replay = graph.replay
        return self._replay


def clipped_update(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    limits: Tensor,
    decay: Tensor,
    step_size: Tensor,
    spread: Tensor,
) -> Tensor:
    """Clip the gradients of each run and make its update in place (see `clip` and `update`); return the norms."""
    clipped, norms = clip(gradients, limits)
    update(weights, first, second, clipped, decay, step_size, spread)
    return norms
