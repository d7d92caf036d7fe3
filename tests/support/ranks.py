"""Runs a function in several processes that talk by gloo, and models that are sharded over them."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from toposcope.errors import ToposcopeError
from toposcope.monitor import quantities as quantities_module
from toposcope.monitor.parameters import layout, watched
from toposcope.monitor.quantities import Quantities
from toposcope.monitor.shards import all_arrive, data_parallel, gather

TIMEOUT_SECONDS = 60


def on_ranks(function: Callable[..., Any], n_ranks: int, folder: Path, *arguments: Any) -> list[Any]:
    """What a function of this or another importable module returns on each rank; tensors and plain values only."""
    spawn(_on_rank, (function, n_ranks, str(folder), arguments), nprocs=n_ranks)  # type: ignore[no-untyped-call]
    return [torch.load(folder / f"returned-{rank}.pt", weights_only=True) for rank in range(n_ranks)]


def _on_rank(rank: int, function: Callable[..., Any], n_ranks: int, folder: str, arguments: tuple[Any, ...]) -> None:
    from datetime import timedelta

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n_ranks, timeout=limit)
    torch.save(function(*arguments), Path(folder) / f"returned-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads may still hold tensors, and abort when they free them in an interpreter that shuts down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def check_close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Rows of quantities have the same names and nearly the same values."""
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name].keys() == row.keys(), name
        for quantity, value in row.items():
            assert found[name][quantity] == pytest.approx(value, rel=tolerance, abs=1e-12), (name, quantity)


class Block(nn.Module):
    """Two maps, one with an odd number of rows, and a parameter of one number: the second of two ranks has no part."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(7, 10), nn.Linear(10, 7, bias=False)
        self.shift = nn.Parameter(torch.randn(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input and what is added to it; the third unit is dead."""
        hidden = torch.tanh(self.up(x)) * (torch.arange(10) != 2)
        out: torch.Tensor = x + self.down(hidden) + self.shift
        return out


def model_of(seed: int = 0) -> nn.Sequential:
    """A model, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(Block(), Block()).double()


def data(rank: int = 0, n_ranks: int = 1) -> torch.Tensor:
    """The part of a batch that a rank has."""
    return torch.randn(8, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).chunk(n_ranks)[rank]


def six_steps(model: nn.Module, batch: torch.Tensor) -> list[dict[str, dict[str, float]]]:
    """The quantities of the first six steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantities = Quantities(watched(model), layout(model))
    rows = []
    for _ in range(6):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        quantities.before()
        optimizer.step()
        rows.append(quantities.after().rows())
    return rows


def fsdp2(*mesh: int) -> nn.Sequential:
    """A model that fully_shard shards over a mesh: (2,) shards, (2, 2) replicates and shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, dims = model_of(), ("replicate", "shard")[-len(mesh) :]
    grid = init_device_mesh("cpu", mesh, mesh_dim_names=dims)
    for block in model:
        fully_shard(block, mesh=grid)
    fully_shard(model, mesh=grid)
    return model


def tensor_parallel(*mesh: int) -> nn.Sequential:
    """A model whose maps are split over the last dimension of a mesh, and that FSDP2 shards over the first of two.

    On a mesh of one dimension, biases and the like are no DTensors.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = model_of()
    grid = init_device_mesh("cpu", mesh, mesh_dim_names=("shard", "split")[-len(mesh) :])
    for block in model:
        block.forward = _split_forward.__get__(block)
        parallelize_module(block, grid["split"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if len(mesh) == 2:
            fully_shard(block, mesh=grid["shard"])
    return model


def sharded(kind: str, *mesh: int) -> tuple[list[dict[str, dict[str, float]]], dict[str, torch.Tensor]]:
    """The quantities of six steps of a sharded model, and what a rank keeps of its gathered parameters before."""
    rank, is_fsdp = dist.get_rank(), kind == "fsdp2"
    model = fsdp2(*mesh) if is_fsdp else tensor_parallel(*mesh)
    copies = {name: gather(parameter) for name, parameter in watched(model).items()}
    kept = {name: copy.tensor() for name, copy in copies.items() if copy is not None}
    n_split = 1 if is_fsdp else mesh[-1]
    return six_steps(model, data(rank // n_split, dist.get_world_size() // n_split)), kept


def replicas_that_part() -> list[dict[int, dict[str, float]]]:
    """How replicas compare at four steps; before the third, one weight of the second rank moves a little."""
    model = nn.parallel.DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantities = Quantities(watched(model), layout(model), data_parallel(model))
    found = []
    for step in range(4):
        optimizer.zero_grad()
        model(data(dist.get_rank(), 2)).square().mean().backward()
        optimizer.step()
        if step == 2 and dist.get_rank() == 1:
            with torch.no_grad():
                model.module[1].up.weight[3, 3] += 1e-9
        found.append(quantities.after().ranks())
    return found


def for_both_kinds(function: Callable[[str], list[Any]]) -> dict[str, list[Any]]:
    """What a function returns of replicas and of shards."""
    found = {}
    for kind in ("ddp", "fsdp2"):
        found[kind] = function(kind)
        dist.barrier()
    return found


def one_fails(kind: str) -> list[str]:
    """What each rank measures at five steps, if the second fails at the third."""
    model = nn.parallel.DistributedDataParallel(model_of()) if kind == "ddp" else fsdp2(2)
    quantities = Quantities(watched(model), layout(model), data_parallel(model))
    found: list[str] = []
    for step in range(5):
        try:
            fails = dist.get_rank() == 1 and step == 2
            with patch.object(quantities_module, "norms", None) if fails else nullcontext():
                quantities.before()
                pending = quantities.after(gradients=False)
            found.append(f"{len(pending.rows())} rows of {len(pending.ranks()) or 'the'} ranks")
        except Exception as error:  # noqa: BLE001 - what a monitor would say
            return [*found, f"{type(error).__name__}: {error}"]
    return found


def agreed(kind: str) -> list[Any]:
    """What ranks agree on, each with a mind of its own; then the second cannot go on, and one more time without it."""
    model = nn.parallel.DistributedDataParallel(model_of()) if kind == "ddp" else fsdp2(2)
    quantities, rank = Quantities(watched(model), layout(model), data_parallel(model)), dist.get_rank()
    found: list[Any] = [quantities.is_leader, quantities.n_ranks, quantities.agree([10 * rank + 1, 5, 0])]
    for stops in (rank == 1, False):
        try:
            found.append(quantities.agree([7 - rank, 0], stop=stops))
        except ToposcopeError as error:
            return [*found, str(error)]
    return found


def arrivals(late: float) -> list[bool]:
    """Whether all have arrived: at once, with the second rank late, and at once again."""
    rank, found = dist.get_rank(), []
    for place, wait in (("a", 0.0), ("b", late), ("c", 0.0)):
        dist.barrier()
        time.sleep(wait * rank)
        found.append(all_arrive(place, 2, 1.0))
    dist.barrier()
    return found


def _split_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    """The forward pass of a rank that has a part of the hidden units."""
    hidden = torch.tanh(self.up(x))
    first = dist.get_rank() % 2 * 5
    mine = torch.arange(first, first + hidden.shape[-1])
    out: torch.Tensor = x + self.down(hidden * (mine != 2)) + self.shift
    return out
