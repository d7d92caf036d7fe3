"""Tensors that are sharded over ranks: the local shard, sums over all shards, copies of whole parameters."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from numpy.typing import NDArray

from toposcope.checkpoints.formats.entry import Entry, in_memory
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel


def is_sharded(tensor: "Tensor") -> "TypeGuard[DTensor]":
    """Return whether a tensor is a DTensor, as with FSDP2 and tensor parallelism."""
    module = sys.modules.get("torch.distributed.tensor")  # if it is not imported, no DTensor exists
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: "Tensor") -> "Tensor":
    """Return the local shard, a view of the tensor."""
    import torch

    with torch.no_grad():
        return tensor.to_local().detach() if is_sharded(tensor) else tensor.detach()


class Sharding:
    """How the parameters of a model are sharded, and sums over the ranks that hold them."""

    def __init__(self, parameters: "Iterable[Tensor]") -> None:
        import torch.distributed as dist

        meshes: list[DeviceMesh] = []
        for parameter in parameters:
            if is_sharded(parameter) and parameter.device_mesh not in meshes:
                meshes.append(parameter.device_mesh)
        self.mesh = max(meshes, key=lambda mesh: mesh.size(), default=None)
        """The largest mesh, which has all ranks that hold parameters."""
        ranks = _ranks(self.mesh)
        if any(not set(_ranks(mesh)) <= set(ranks) for mesh in meshes):
            raise ToposcopeError(
                "parameters are sharded over separate device meshes, as in pipeline parallelism; give the monitor the "
                "part of the model on one mesh"
            )
        self._first = ranks[0] if ranks else 0
        self.is_first = self.mesh is None or dist.get_rank() == self._first
        """Whether this rank is the first of the mesh."""

    def counts(self, tensor: "Tensor") -> bool:
        """Return whether sums include this rank's shard; of replicated shards, they include one."""
        import torch.distributed as dist

        if self.mesh is None:
            return True
        if not is_sharded(tensor):
            return dist.get_rank() == self._first
        place = tensor.device_mesh.get_coordinate()
        if place is None or self._first not in _ranks(tensor.device_mesh):
            return False
        return all(at == 0 or not p.is_replicate() for at, p in zip(place, tensor.placements, strict=True))

    def summed(self, vector: "Tensor") -> "Tensor":
        """Return the sum of a vector over all ranks of the mesh; a collective operation."""
        import torch.distributed as dist

        if self.mesh is None or self.mesh.get_coordinate() is None:
            return vector
        device = vector.device if vector.device.type == self.mesh.device_type else self.mesh.device_type
        total = vector.to(device)
        # One reduction per dimension of the mesh uses the existing process groups.
        for dimension in range(self.mesh.ndim):
            if self.mesh.size(dimension) > 1:
                dist.all_reduce(total, group=self.mesh.get_group(dimension))
        return total


def as_placed(gradient: "Tensor", parameter: "Tensor") -> "Tensor":
    """Return a gradient with the placements of its parameter, partial sums reduced; a collective operation."""
    if not is_sharded(gradient) or not is_sharded(parameter) or gradient.placements == parameter.placements:
        return gradient
    return cast("Tensor", gradient.redistribute(placements=parameter.placements))


class Slots:
    """Positions in the reduced vector at which a rank marks the units of its shard that have a gradient.

    Needed if the inputs of units are sharded: shards of the same units share their slots. Otherwise each rank counts
    its own units, and there are no slots.
    """

    def __init__(self, parameter: "Tensor", units: int) -> None:
        self.count = self.start = 0
        if not is_sharded(parameter):
            return
        mesh, place = parameter.device_mesh, parameter.device_mesh.get_coordinate()
        cut = [_shard_dimension(p) if mesh.size(k) > 1 else None for k, p in enumerate(parameter.placements)]
        if place is None or all(dimension in {None, units} for dimension in cut):
            return
        index, parts = 0, 1
        for k, dimension in enumerate(cut):
            if dimension == units:
                index, parts = index * mesh.size(k) + place[k], parts * mesh.size(k)
        size = ceil(parameter.shape[units] / parts)
        self.count, self.start = size * parts, size * index


def _shard_dimension(placement: "Placement") -> int | None:
    """Return the dimension along which a placement shards a tensor; None if it does not shard."""
    dimension: int | None = getattr(placement, "dim", None)  # of Shard and of the strided shards of FSDP2 on TP
    return dimension


def _ranks(mesh: "DeviceMesh | None") -> list[int]:
    return [] if mesh is None else [int(rank) for rank in mesh.mesh.flatten().tolist()]


def rank() -> int:
    """Return the global rank of this process; 0 without torch.distributed."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def data_parallel(model: "Module") -> "DistributedDataParallel | None":
    """Return the DistributedDataParallel wrapper of a model or of a part of it, if there is one."""
    from torch.nn.parallel import DistributedDataParallel

    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def all_arrive(place: str, n_ranks: int, seconds: float) -> bool:
    """Return whether `n_ranks` ranks call this with the same `place` within a timeout; all ranks get the same answer.

    It is a barrier that cannot hang: after it, either all ranks begin a collective operation, or none does.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC2701 - the only store all ranks share

    if not dist.is_initialized():
        return n_ranks == 1
    store, deadline = _get_default_store(), time.monotonic() + seconds
    arrived, answer = f"toposcope/{place}/arrived", f"toposcope/{place}/answer"
    if store.add(arrived, 1) == n_ranks:
        return bool(store.compare_set(answer, "", "yes") == b"yes")
    while time.monotonic() < deadline:
        if store.check([answer]):
            return bool(store.get(answer) == b"yes")
        time.sleep(0.01)
    return bool(store.compare_set(answer, "", "no") == b"yes")


class Copy:
    """A copy of a tensor on the CPU; a copy from a GPU is asynchronous."""

    def __init__(self, tensor: "Tensor") -> None:
        import torch

        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            # torch caches pinned memory, so this is cheap after the first time.
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            # The copy is queued on the tensor's own device, which need not be the current one.
            with torch.cuda.device(tensor.device):
                self._tensor.copy_(tensor, non_blocking=True)
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._event.record()
        else:
            self._tensor = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)

    def tensor(self) -> "Tensor":
        """Wait until the copy is complete, on any thread, and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor

    def entry(self, name: str) -> Entry:
        """Return the copy as the tensor of a layer; reading it waits until the copy is complete."""
        return replace(in_memory(name, self._tensor), read=self._rows)

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        return in_memory("", self.tensor()).read(start, stop)


def gather(parameter: "Tensor", *, keep: bool | None = None) -> Copy | None:
    """Copy a whole parameter to the CPU. For a sharded parameter this is a collective operation."""
    import torch

    keeps = rank() == 0 if keep is None else keep
    with torch.no_grad():
        if is_sharded(parameter):
            whole = _on_its_mesh(parameter).full_tensor()
            return Copy(whole) if keeps else None
        return Copy(parameter.detach()) if keeps else None


def _on_its_mesh(parameter: "DTensor") -> "DTensor":
    """Return a parameter on the device of its mesh, which can communicate; FSDP2 may have offloaded it to the CPU."""
    from torch.distributed.tensor import DTensor

    mesh, part = parameter.device_mesh, parameter.to_local()
    if part.device.type == mesh.device_type:
        return parameter
    return DTensor.from_local(
        part.to(mesh.device_type),
        mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
