"""Writes torch.distributed.checkpoint as several ranks do, each with its chunks of every tensor, in one process."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

Cuts = Sequence[Sequence[int]]
"""Where a tensor is cut along each of its axes."""


class _Rank(DefaultSavePlanner):
    """What one rank holds: views of the whole tensors, in place of those it would have on its own device."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def resolve_data(self, write_item: WriteItem) -> Any:
        assert write_item.tensor_data is not None
        chunk = write_item.tensor_data.chunk
        place = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        return self.weights[write_item.index.fqn][place]


def chunks_of(shape: Sequence[int], cuts: Cuts) -> list[ChunkStorageMetadata]:
    """The parts of a tensor that is cut along its axes, those without a number included."""
    edges = [[0, *sorted(places), extent] for places, extent in zip(cuts, shape, strict=True)]
    return [
        ChunkStorageMetadata(torch.Size([a for a, _ in box]), torch.Size([b - a for a, b in box]))
        for box in itertools.product(*(itertools.pairwise(along) for along in edges))
    ]


def write_sharded(
    folder: Path,
    weights: Mapping[str, Tensor],
    cuts: Mapping[str, Cuts],
    *,
    n_ranks: int = 2,
    paths: Mapping[str, tuple[str, ...]] | None = None,
    writer: type[filesystem.FileSystemWriter] = filesystem.FileSystemWriter,
    **options: Any,
) -> Path:
    """Write tensors as `n_ranks` ranks would, the chunks dealt out in turn; a tensor without cuts is whole."""
    if paths is None:  # as a planner flattens {"model": weights}
        paths = {f"model.{name}": ("model", name) for name in weights}
        weights = {f"model.{name}": tensor for name, tensor in weights.items()}
        cuts = {f"model.{name}": cut for name, cut in cuts.items()}
    items: list[list[WriteItem]] = [[] for _ in range(n_ranks)]
    turn = itertools.cycle(items)
    for name, tensor in weights.items():
        properties = TensorProperties(dtype=tensor.dtype)
        for chunk in chunks_of(tensor.shape, cuts.get(name, [()] * tensor.dim())):
            data = TensorWriteData(chunk, properties, tensor.shape)
            next(turn).append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
    plans, metadata = create_default_global_save_plan([SavePlan(part) for part in items])
    results = []
    written = [writer(folder, **options) for _ in range(n_ranks)]
    for one in written:
        one.set_up_storage_writer(one is written[0])
    plans = written[0].prepare_global_plan([one.prepare_local_plan(p) for one, p in zip(written, plans, strict=True)])
    for one, plan in zip(written, plans, strict=True):
        results.append(one.write_data(plan, _Rank(weights)).wait())
    written[0].finish(replace(metadata, planner_data=paths), results)
    return folder
