"""The updates of a pack: its sequences, and AdamW of many runs at once, in blocks that need nothing of the host.

Everything that differs from step to step is in tables on the device, and the row of the tables is counted there too. On
a GPU one update is compiled, captured as a CUDA graph and replayed: a step of small models is otherwise many times as
long as its arithmetic. This path has not run on a GPU yet; the compiled functions were compared with the plain ones on
a CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.family.batched.model import Layout, losses
from toposcope.family.batches import Batches, dropout_masks, mask_keys, validation_sequences
from toposcope.family.corpus import Tokens
from toposcope.family.run import FamilyRun, ModelSize, TrainingOptions

FIRST_DECAY, SECOND_DECAY = 0.9, 0.999
"""Of the moving averages of the gradient and its square: torch's defaults, as for a run trained alone."""
EPSILON = 1e-8
CLIP_EPSILON = 1e-6  # added to the norm by `clip_grad_norm_`
BLOCK_STEPS = 250  # steps whose tables are made at once
WARM_UP = 3  # updates before a graph is captured, as torch asks for


class Feed:
    """All tokens of a pack on its device, and where each run reads them."""

    def __init__(self, runs: Sequence[FamilyRun], tokens: Sequence[Tokens], device: torch.device) -> None:
        self._batches = [Batches(run, corpus) for run, corpus in zip(runs, tokens, strict=True)]
        # A share of a corpus is its beginning: runs of one corpus read the same tokens, whatever their shares.
        inputs = [corpus.training for corpus in tokens]
        targets = [
            begin if batches.targets is None else batches.targets
            for begin, batches in zip(inputs, self._batches, strict=True)
        ]
        parts = {id(part): part for part in (*inputs, *targets)}
        begins = dict(zip(parts, accumulate(map(len, parts.values()), initial=0), strict=False))
        self._pool = torch.cat(list(parts.values())).to(device)
        offsets = torch.tensor([[begins[id(part)] for part in of_runs] for of_runs in (inputs, targets)], device=device)
        self._offsets = offsets.T[..., None, None]
        self._window = torch.arange(runs[0].size.context + 1, device=device)
        self.validation = torch.stack([validation_sequences(*pair) for pair in zip(runs, tokens, strict=True)]).to(
            device
        )

    def starts(self, begin: int, stop: int) -> Tensor:
        """Return where the sequences of the updates after `begin` start, shape (steps, runs, batch)."""
        each = [torch.stack([batches.starts(step) for step in range(begin + 1, stop + 1)]) for batches in self._batches]
        return torch.stack(each, dim=1)

    def batch(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, shape (runs, batch, context), for starts of shape (runs, batch)."""
        places = starts[:, None, :, None] + self._offsets + self._window
        return self._pool[places[:, 0, :, :-1]].long(), self._pool[places[:, 1, :, 1:]].long()


@dataclass(frozen=True)
class Factors:
    """What the updates of some steps multiply by, one row per step."""

    decay: Tensor  # shape (steps, runs, 1); of the weights: rate * decay
    step_size: Tensor  # shape (steps, runs, 1); the rate over the first bias correction
    spread: Tensor  # shape (steps, 1, 1); the root of the second bias correction

    @classmethod
    def of(cls, options: Sequence[TrainingOptions], begin: int, stop: int) -> "Factors":
        """Return the factors of the steps after `begin` up to `stop`."""
        steps = range(begin + 1, stop + 1)
        rates = torch.tensor([[each.rate(step) for each in options] for step in steps], dtype=torch.float64)
        decays = torch.tensor([each.weight_decay for each in options], dtype=torch.float64)
        counts = torch.tensor(list(steps), dtype=torch.float64)[:, None]
        dtype = torch.get_default_dtype()
        return cls(
            (rates * decays).to(dtype)[..., None],
            (rates / (1 - FIRST_DECAY**counts)).to(dtype)[..., None],
            (1 - SECOND_DECAY**counts).sqrt().to(dtype)[..., None],
        )


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
    """Clip the gradients of each run to its limit and make one update of AdamW in place; return the norms before."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    clipped = gradients * (limits / (norms + CLIP_EPSILON)).clamp(max=1.0)[:, None]
    weights.addcmul_(weights, decay, value=-1)
    first.lerp_(clipped, 1 - FIRST_DECAY)
    second.mul_(SECOND_DECAY).addcmul_(clipped, clipped, value=1 - SECOND_DECAY)
    weights.addcdiv_(first * step_size, (second.sqrt() / spread).add_(EPSILON), value=-1)
    return norms


@dataclass(frozen=True)
class PackState:
    """What updates change: weights and the moving averages of gradients and of their squares."""

    weights: Tensor  # shape (runs, parameters)
    first: Tensor  # shape (runs, parameters)
    second: Tensor  # shape (runs, parameters)


class Updates:
    """Updates of all runs of a pack, in place."""

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
