"""Copies of whole parameters on the CPU, one at a time, and which rank makes them."""

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
    """Return the number of this process among those that train together; 0 if it trains alone."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return how many processes train together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def data_parallel(model: "Module") -> "DistributedDataParallel | None":
    """Return the wrapper because of which several ranks hold the same parameters, if there is one."""
    from torch.nn.parallel import DistributedDataParallel

    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def all_arrive(place: str, n_ranks: int, seconds: float) -> bool:
    """Return whether so many ranks call this for one place within some time, the same answer on each of them.

    No rank waits longer, whatever the others do: what all must do together can then begin, or is left out by all.
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
    """A copy of a tensor on the CPU, which may still be on its way from a GPU.

    Parameters
    ----------
    tensor : Tensor
        Of this process; what is done to it later does not reach the copy.
    """

    def __init__(self, tensor: "Tensor") -> None:
        import torch

        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            # torch keeps pinned memory and gives it out again.
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            # The copy is queued on the tensor's own device, which need not be the current one.
            with torch.cuda.device(tensor.device):
                self._tensor.copy_(tensor, non_blocking=True)
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._event.record()
        else:
            self._tensor = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)

    def tensor(self) -> "Tensor":
        """Return the copy as soon as it is there; any thread may wait for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor

    def entry(self, name: str) -> Entry:
        """Return the copy as the tensor of a layer; reading it waits for the copy."""
        return replace(in_memory(name, self._tensor), read=self._rows)

    def _rows(self, start: int, stop: int) -> NDArray[Any]:
        return in_memory("", self.tensor()).read(start, stop)


def gather(parameter: "Tensor", *, keep: bool | None = None) -> Copy | None:
    """Copy a whole parameter to the CPU; of a sharded one, all ranks that hold it call this.

    Parameters
    ----------
    parameter : Tensor
    keep : bool, optional
        Whether this rank wants the copy; by default the first rank does.

    Returns
    -------
    Copy or None
        None where it is not kept.
    """
    import torch

    keeps = rank() == 0 if keep is None else keep
    with torch.no_grad():
        if is_sharded(parameter):
            whole = _on_its_mesh(parameter).full_tensor()
            return Copy(whole) if keeps else None
        return Copy(parameter.detach()) if keeps else None


def _on_its_mesh(parameter: "DTensor") -> "DTensor":
    """Return a parameter on the device whose ranks can talk; FSDP2 may keep it on the CPU between steps."""
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
