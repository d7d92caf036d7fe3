"""The loss on the points of a plane, several points in one forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.models.loss_planes.directions import Sample
from toposcope.progress import Progress, silent
from toposcope.typing import Matrix, Vector

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.models.summed_loss import SummedLoss
    from toposcope.typing import Indices

ROUNDING = 8  # relative error of a loss, in units of the precision of the dtype it is computed in
# Fixed, never the free memory, so that every machine gives the same bytes.
CHUNK_BYTES, GPU_CHUNK_BYTES = 1 << 29, 1 << 33  # of the activations of the points that go through the model at once
WEIGHT_BYTES, GPU_WEIGHT_BYTES = 1 << 24, 1 << 32  # and of their weights
MIN_CHUNKS = 16  # so that several threads have their share; not by their number, so that no bit depends on it
MAX_COPIED_BYTES = 1 << 28  # of a model copied for each thread; PyTorch shares out the operations of a larger one


@dataclass(frozen=True, eq=False)
class Surface:
    """The loss on the points of a plane."""

    sample: Sample
    # shape (n, batches); nats, summed over the tokens of each batch of the text. Not finite where the model's losses
    # are not
    totals: Matrix
    tokens: Indices  # shape (batches,); predicted tokens of each batch
    rounding: float  # about how far a loss may be wrong by rounding, relative to it

    @property
    def values(self) -> Vector:
        """Loss at each point, nats per token, shape (n,); infinite where a loss is not finite."""
        values = self.totals.sum(axis=1) / self.tokens.sum()
        return np.where(np.isfinite(values), values, np.inf)

    def on_batch(self, batch: int) -> Surface:
        """Return the surface of one batch of the text alone."""
        return Surface(self.sample, self.totals[:, [batch]], self.tokens[[batch]], self.rounding)

    def half(self) -> Surface:
        """Return the surface at half the resolution (see `Sample.half`)."""
        sample, places = self.sample.half()
        return Surface(sample, self.totals[places], self.tokens, self.rounding)


def evaluate(
    loss: SummedLoss,
    directions: Tensor,
    sample: Sample,
    *,
    batches: int = 1,
    together: int | None = None,
    progress: Progress = silent,
) -> Surface:
    """Return the loss at the points ``point + a d1 + b d2`` of a plane.

    Several points go through the model in one forward pass: weights have a leading dimension, those that the directions
    leave alone excepted.
    """
    import torch

    n_sequences = sum(count > 0 for count in loss.counts)
    if not 1 <= batches <= n_sequences:
        raise ToposcopeError(f"plane: {batches} batches of {n_sequences} sequences; take fewer, or more sequences")
    loss.value_at_checkpoint()
    readable = [place for place, count in enumerate(loss.counts) if count]
    parts = [loss.on(part.tolist()) for part in np.array_split(readable, batches)]
    totals = np.empty((len(sample), batches))
    coordinates = torch.from_numpy(sample.coordinates).to(directions)
    moved = [bool(directions[:, block.start : block.stop].any()) for block in loss.blocks.values()]
    at_once = together or min(points_per_batch(parts, len(loss.point)), -(-len(sample) // MIN_CHUNKS))
    at_once = 1 if loss.one_by_one else at_once

    def fill(parts: list[SummedLoss], start: int) -> int:
        chosen = slice(start, start + at_once)
        # code that is not ours may take a gradient of its own, which inference mode forbids
        with torch.no_grad() if loss.one_by_one else torch.inference_mode():
            points = torch.addmm(loss.point, coordinates[chosen], directions)
            for batch, part in enumerate(parts):
                totals[chosen, batch] = losses_at(part, points, moved).cpu().numpy()
        return len(points)

    done = 0
    progress("landscape", done, len(sample))
    for count in _in_threads(fill, parts, range(0, len(sample), at_once)):
        done += count
        progress("landscape", done, len(sample))
    rounding = loss.rounding or ROUNDING * torch.finfo(loss.point.dtype).eps
    return Surface(sample, totals, np.array([part.n_tokens for part in parts]), rounding)


def _in_threads(
    work: Callable[[list[SummedLoss], int], int], parts: list[SummedLoss], starts: Sequence[int]
) -> Iterator[int]:
    """Do the work from each start on, and yield the results in order.

    On the CPU there are as many threads as PyTorch has, and each uses one of them: unlike the operations of small
    models, whole points share out evenly, and the numbers do not depend on how many threads there are.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if parts[0].one_by_one:  # in this thread, with all of PyTorch's
        yield from (work(parts, start) for start in starts)
        return
    point, before = parts[0].point, torch.get_num_threads()
    n_threads = before if point.device.type == "cpu" and point.nbytes <= MAX_COPIED_BYTES else 1
    # A module holds the weights of the point that it computes.
    copies = [parts, *(_copied(parts) for _ in range(n_threads - 1))]
    own = local()

    def begin() -> None:
        own.parts = copies.pop()
        torch.set_num_threads(1 if n_threads > 1 else before)

    # Which attention is used is a setting of the process that a loss changes and restores: here, to the same value.
    with (
        warnings.catch_warnings(),
        sdpa_kernel(SDPBackend.MATH),
        ThreadPoolExecutor(n_threads, initializer=begin) as pool,
    ):
        # Of operations that vmap computes point by point, which is as fast as a loop.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            yield from pool.map(lambda start: work(own.parts, start), starts)
        finally:
            torch.set_num_threads(before)


def _copied(parts: list[SummedLoss]) -> list[SummedLoss]:
    """Return the same losses with a model of their own, which they share."""
    memo: dict[int, Any] = {}
    return [replace(part, total=deepcopy(part.total, memo)) for part in parts]


def points_per_batch(parts: Sequence[SummedLoss], n_parameters: int) -> int:
    """Return how many points go through a model together: as many as the fixed budget of memory holds."""
    point = parts[0].point
    on_gpu = point.device.type == "cuda"
    largest = max(chain.from_iterable(part.piece_bytes for part in parts))
    by_activations = (GPU_CHUNK_BYTES if on_gpu else CHUNK_BYTES) // max(1, largest)
    by_weights = (GPU_WEIGHT_BYTES if on_gpu else WEIGHT_BYTES) // (n_parameters * point.element_size())
    return max(1, min(by_activations, by_weights))


def losses_at(loss: SummedLoss, points: Tensor, moved: Sequence[bool]) -> Tensor:
    """Return the summed losses at some points, shape (k,), float64."""
    import torch

    sizes = [block.stop - block.start for block in loss.blocks.values()]
    stacked = [
        part.reshape(len(points), *block.shape) if is_moved else part[0].reshape(block.shape)
        for part, block, is_moved in zip(torch.split(points, sizes, dim=1), loss.blocks.values(), moved, strict=True)
    ]
    if loss.one_by_one:
        return torch.stack([loss.total(loss.parameters(point), loss.pieces[0]) for point in points])
    totals = torch.zeros(len(points), dtype=torch.float64, device=points.device)
    for piece in loss.pieces:
        totals += _batch(lambda *parameters, piece=piece: loss.total(parameters, piece), stacked, moved, len(points))
    return totals


def _batch(total: Callable[..., Tensor], stacked: Sequence[Tensor], moved: Sequence[bool], n_points: int) -> Tensor:
    import torch
    from torch.func import vmap

    if n_points > 1 and any(moved):
        try:
            result: Tensor = vmap(total, in_dims=tuple(0 if is_moved else None for is_moved in moved))(*stacked)
        except RuntimeError as error:
            if "vmap" not in str(error) and "functorch" not in str(error):
                raise
        else:
            return result
    # A model that decides by its numbers what to compute cannot take several points at once.
    each = [[part[k] if m else part for part, m in zip(stacked, moved, strict=True)] for k in range(n_points)]
    return torch.stack([total(*parameters) for parameters in each])
