"""Copies whole parameters to the CPU, one at a time, gathering sharded ones."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from toposcope.checkpoints.formats.entry import Entry, in_memory
from toposcope.monitor.shards import is_sharded

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.tensor import DTensor
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel


def rank() -> int:
    """Return the global rank of this process; 0 without torch.distributed."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; 1 without torch.distributed."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


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
    """A copy of a tensor on the CPU; a copy from a GPU is asynchronous.

    Parameters
    ----------
    tensor : Tensor
        A local tensor; later changes to it do not affect the copy.
    """

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
    """Copy a whole parameter to the CPU. For a sharded parameter this is a collective operation.

    Parameters
    ----------
    parameter : Tensor
    keep : bool, optional
        Whether this rank keeps the copy; by default rank 0 does.

    Returns
    -------
    Copy or None
        None if this rank does not keep it.
    """
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
