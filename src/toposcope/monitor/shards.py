"""Tensors that are sharded over ranks: the part on this rank, and sums over all parts."""

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
    """Return whether a tensor is a DTensor, as those of FSDP2 and of tensor parallelism are."""
    module = sys.modules.get("torch.distributed.tensor")  # without it there is none
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: "Tensor") -> "Tensor":
    """Return the numbers on this rank, shared with the tensor."""
    import torch

    with torch.no_grad():
        return tensor.to_local().detach() if is_sharded(tensor) else tensor.detach()


class Sharding:
    """How the parameters of a model are spread over ranks, and sums over those ranks.

    Parameters
    ----------
    parameters : iterable of Tensor
        In the same order on all ranks.

    Raises
    ------
    ToposcopeError
        If the meshes of two sharded parameters have no rank in common with the largest of them.
    """

    def __init__(self, parameters: "Iterable[Tensor]") -> None:
        import torch.distributed as dist

        meshes: list[DeviceMesh] = []
        for parameter in parameters:
            if is_sharded(parameter) and parameter.device_mesh not in meshes:
                meshes.append(parameter.device_mesh)
        self.mesh = max(meshes, key=lambda mesh: mesh.size(), default=None)
        """The largest mesh; its ranks hold all parameters."""
        ranks = _ranks(self.mesh)
        if any(not set(_ranks(mesh)) <= set(ranks) for mesh in meshes):
            raise ToposcopeError(
                "parameters are sharded over meshes of which none has all ranks of the others; give the monitor one "
                "part of the model"
            )
        self._first = ranks[0] if ranks else 0
        self.is_first = self.mesh is None or dist.get_rank() == self._first
        """Whether this rank is the first of those that hold the model."""

    @property
    def is_sharded(self) -> bool:
        """Whether any parameter is a DTensor."""
        return self.mesh is not None

    def counts(self, tensor: "Tensor") -> bool:
        """Return whether this rank's part is to be counted: of parts that are replicated, one is."""
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
        """Return the sum of a vector over all ranks that hold a part of the model; all of them call this."""
        import torch.distributed as dist

        if self.mesh is None or self.mesh.get_coordinate() is None:
            return vector
        device = vector.device if vector.device.type == self.mesh.device_type else self.mesh.device_type
        total = vector.to(device)
        # Along one dimension of the mesh after another, no group of processes need be made.
        for dimension in range(self.mesh.ndim):
            if self.mesh.size(dimension) > 1:
                dist.all_reduce(total, group=self.mesh.get_group(dimension))
        return total


def as_placed(gradient: "Tensor", parameter: "Tensor") -> "Tensor":
    """Return a gradient sharded as its parameter, sums over ranks made; all ranks that hold it call this."""
    if not is_sharded(gradient) or not is_sharded(parameter) or gradient.placements == parameter.placements:
        return gradient
    return cast("Tensor", gradient.redistribute(placements=parameter.placements))


class Slots:
    """Where a rank's part of a matrix says which units have a gradient, if its columns are sharded.

    Parts with the same units share their slots. Without such parts there are none: units are counted.

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
    """Return the dimension along which a placement shards a tensor; None if it does not."""
    dimension: int | None = getattr(placement, "dim", None)  # of Shard and of the strided shards of FSDP2 on TP
    return dimension


def _ranks(mesh: "DeviceMesh | None") -> list[int]:
    return [] if mesh is None else [int(rank) for rank in mesh.mesh.flatten().tolist()]
