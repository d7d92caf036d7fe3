"""What the blocks of a model put out on a fixed small batch, and which of their units are dead or saturated."""

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

MAX_POINTS = 512
"""Tokens of the batch whose states are measured, at even distances."""
STILL = 1e-3
"""A unit is dead if its values differ by no more than this share of the root mean square of its layer."""
NEAR_LIMIT, MOST = 0.99, 0.95
"""A unit is saturated if this share of the largest value of its layer is exceeded by most of its values."""


@dataclass
class Activations:
    """What one forward pass left behind.

    Attributes
    ----------
    states : dict of ndarray, shape (n, width), float32
        Output of each block, by pseudo-layer.
    units : dict
        By pseudo-layer: ``dead_units`` and ``saturated_units``, shares of the units before the second matrix of the
        block's MLP.
    """

    states: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    units: dict[str, dict[str, float]] = field(default_factory=dict)


class FixedBatch:
    """Runs a model on a fixed batch, without a trace: modes, random state and gradients are as before.

    Parameters
    ----------
    model : torch.nn.Module
        Wrapped or compiled models run without their wrapper, not compiled.
    batch : Tensor, sequence or mapping
        Arguments of the model's forward: one, several, or by name.

    Raises
    ------
    ToposcopeError
        If the model has no blocks, or is sharded.
    """

    def __init__(self, model: "nn.Module", batch: Any) -> None:
        self._model, self._batch = unwrapped(model), batch
        self._blocks = _blocks(self._model)

    def run(self) -> Activations:
        """Run the model; return what its blocks put out."""
        import torch

        found = Activations()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_modes_kept(self._model))
            devices = sorted({p.device.index for p in self._model.parameters() if p.device.type == "cuda"})
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for handle in self._hooks(found):
                stack.callback(handle.remove)
            if isinstance(self._batch, Mapping):
                self._model(**self._batch)
            elif isinstance(self._batch, tuple | list):
                self._model(*self._batch)
            else:
                self._model(self._batch)
        return found

    def _hooks(self, found: Activations) -> Iterator[Any]:
        for k, (path, block) in enumerate(self._blocks.items(), 1):
            yield block.register_forward_hook(_keep_output(found, hidden(k)))
            for name, module in block.named_modules():
                if role_of(f"{path}.{name}.weight") == "mlp.out":
                    yield module.register_forward_pre_hook(_keep_units(found, hidden(k)))


def _keep_output(found: Activations, name: str) -> Callable[..., None]:
    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple | list) else output
        found.states[name] = _points(states)

    return keep


def _keep_units(found: Activations, name: str) -> Callable[..., None]:
    def keep(_module: Any, inputs: Any) -> None:
        found.units[name] = unit_shares(_points(inputs[0]))

    return keep


def unit_shares(values: NDArray[np.float32]) -> dict[str, float]:
    """Return the shares of dead and of saturated units.

    Parameters
    ----------
    values : ndarray, shape (n, units)
        Of each unit at some tokens.

    Returns
    -------
    dict of float
        ``dead_units``: hardly varies from token to token. ``saturated_units``: varies, and is at the limit of its
        layer's values at nearly every token. Empty where values are not finite.
    """
    size, largest = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        return {}
    dead = np.ptp(values, axis=0) <= STILL * size
    at_limit = (np.abs(values) >= NEAR_LIMIT * largest).mean(axis=0) >= MOST
    return {"dead_units": float(dead.mean()), "saturated_units": float((at_limit & ~dead).mean())}


def _points(states: "Tensor") -> NDArray[np.float32]:
    """Return the last dimension of some tokens, in float32, on the CPU."""
    import torch

    flat = states.detach().reshape(-1, states.shape[-1])
    chosen = torch.from_numpy(evenly(len(flat), MAX_POINTS)).to(flat.device)
    points: NDArray[np.float32] = flat[chosen].float().cpu().numpy().copy()
    return points


def _blocks(model: "nn.Module") -> "dict[str, nn.Module]":
    """Return the blocks of a model by name: the list of equal modules that holds most of its parameters.

    Raises
    ------
    ToposcopeError
    """
    from torch import nn

    lists: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and _is_of_equal_parts(module)
    }
    if not lists:
        raise ToposcopeError(
            "batch: the model has no list of equal blocks, whose outputs could be measured; leave batch out"
        )
    name = max(lists, key=lambda n: sum(p.numel() for p in lists[n].parameters()))
    return {f"{name}.{key}".lstrip("."): block for key, block in lists[name].named_children()}


def _is_of_equal_parts(module: "nn.Module") -> bool:
    from torch import nn

    parts = list(module.children())
    # A sequence of one part is not a list of blocks; a list of one is.
    enough = len(parts) >= (1 if isinstance(module, nn.ModuleList) else 2)
    return enough and len({type(part) for part in parts}) == 1 and any(True for _ in parts[0].parameters())


@contextmanager
def _modes_kept(model: "nn.Module") -> Iterator[None]:
    """Run a model in evaluation mode, and put every part back into its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
