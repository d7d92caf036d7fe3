"""Outputs of a model's blocks on a small fixed batch, and the shares of dead and saturated units."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.roles import role_of
from toposcope.errors import ToposcopeError
from toposcope.monitor.parameters import unwrapped
from toposcope.probes.hidden_states import evenly, hidden

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_POINTS = 512  # evenly spaced tokens of the batch whose hidden states are measured
MAX_DEAD_RANGE = 1e-3
"""A unit is dead if the range of its values is at most this share of the root mean square of its layer."""
MIN_SATURATED_VALUE = 0.99
"""A value is at the limit if it reaches this share of the largest absolute value of its layer."""
MIN_SATURATED_SHARE = 0.95  # a unit is saturated if at least this share of its values are at the limit


@dataclass
class Activations:
    """Results of one forward pass."""

    # shape (n, width); output of each block at some tokens, by pseudo-layer
    states: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    # by pseudo-layer: ``dead_units`` and ``saturated_units``, as shares of the inputs of the second matrix of the
    # block's MLP
    units: dict[str, dict[str, float]] = field(default_factory=dict)


class FixedBatch:
    """Runs a model on a fixed batch, and restores its modes, the random state and gradients."""

    def __init__(self, model: "nn.Module", batch: Any) -> None:
        self._model, self._batch = unwrapped(model), batch
        self._blocks = _blocks(self._model)

    def run(self) -> Activations:
        """Run the model; return the outputs of its blocks."""
        import torch

        activations = Activations()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_evaluation_mode(self._model))
            devices = sorted({p.device.index for p in self._model.parameters() if p.device.type == "cuda"})
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for handle in self._hooks(activations):
                stack.callback(handle.remove)
            if isinstance(self._batch, Mapping):
                self._model(**self._batch)
            elif isinstance(self._batch, tuple | list):
                self._model(*self._batch)
            else:
                self._model(self._batch)
        return activations

    def _hooks(self, activations: Activations) -> Iterator[Any]:
        for k, (path, block) in enumerate(self._blocks.items(), 1):
            yield block.register_forward_hook(_record_output(activations, hidden(k)))
            for name, module in block.named_modules():
                if role_of(f"{path}.{name}.weight") == "mlp.out":
                    yield module.register_forward_pre_hook(_record_units(activations, hidden(k)))


def _record_output(activations: Activations, name: str) -> Callable[..., None]:
    def record(_module: Any, _inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple | list) else output
        activations.states[name] = _points(states)

    return record


def _record_units(activations: Activations, name: str) -> Callable[..., None]:
    def record(_module: Any, inputs: Any) -> None:
        activations.units[name] = unit_shares(_points(inputs[0]))

    return record


def unit_shares(values: NDArray[np.float32]) -> dict[str, float]:
    """Return the shares of dead and of saturated units."""
    size, largest = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        return {}
    dead = np.ptp(values, axis=0) <= MAX_DEAD_RANGE * size
    at_limit = (np.abs(values) >= MIN_SATURATED_VALUE * largest).mean(axis=0) >= MIN_SATURATED_SHARE
    return {"dead_units": float(dead.mean()), "saturated_units": float((at_limit & ~dead).mean())}


def _points(states: "Tensor") -> NDArray[np.float32]:
    """Return the vectors of evenly spaced tokens as float32 on the CPU."""
    import torch

    flat = states.detach().reshape(-1, states.shape[-1])
    chosen = torch.from_numpy(evenly(len(flat), MAX_POINTS)).to(flat.device)
    points: NDArray[np.float32] = flat[chosen].float().cpu().numpy().copy()
    return points


def _blocks(model: "nn.Module") -> "dict[str, nn.Module]":
    """Return the blocks of a model by name: the list of equal modules with the most parameters."""
    from torch import nn

    lists: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and _has_equal_children(module)
    }
    if not lists:
        raise ToposcopeError(
            "batch: ignored, since the model has no ModuleList or Sequential of equal blocks to measure"
        )
    name = max(lists, key=lambda n: sum(p.numel() for p in lists[n].parameters()))
    return {f"{name}.{key}".lstrip("."): block for key, block in lists[name].named_children()}


def _has_equal_children(module: "nn.Module") -> bool:
    from torch import nn

    parts = list(module.children())
    # A ModuleList of one module is a list of blocks; a Sequential of one is not.
    enough = len(parts) >= (1 if isinstance(module, nn.ModuleList) else 2)
    return enough and len({type(part) for part in parts}) == 1 and any(True for _ in parts[0].parameters())


@contextmanager
def _evaluation_mode(model: "nn.Module") -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of every module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
