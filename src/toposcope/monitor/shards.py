"""Tensors that are sharded over ranks: the local shard, and sums over all shards."""

import sys
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, TypeGuard, cast

from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


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
    """How the parameters of a model are sharded, and sums over the ranks that hold them.

    Parameters
    ----------
    parameters : iterable of Tensor
        Parameters in the same order on all ranks.

    Raises
    ------
    ToposcopeError
        If the largest mesh does not have the ranks of all other meshes.
    """

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

    @property
    def is_sharded(self) -> bool:
        """Whether any parameter is a DTensor."""
        return self.mesh is not None

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

    Parameters
    ----------
    parameter : Tensor
    units : int
        The dimension of the units.
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
