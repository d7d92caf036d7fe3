"""Any function of any module as a function of the module's weights, for planes of the loss."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from toposcope.errors import ToposcopeError
from toposcope.models.summed_loss import SummedLoss, blocks_of, flat
from toposcope.models.tuning import ROUNDING

Loss = Callable[[Any], "Tensor | float"]


@dataclass
class _Total:
    """The loss with other weights in the module, which is itself never written to.

    Buffers are copies, made anew, and random numbers of torch begin at one seed: the same weights give the same loss.
    """

    network: nn.Module
    names: Sequence[str]
    seed: int

    def __call__(self, parameters: Sequence[Tensor], _places: Sequence[int]) -> Tensor:
        own = dict(self.network.named_parameters())
        given: dict[str, Tensor] = {
            name: parameter.to(own[name], copy=not parameter.requires_grad)
            for name, parameter in zip(self.names, parameters, strict=True)
        }
        given |= {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        training = {part: part.training for part in self.network.modules()}
        device = parameters[0].device
        wants_gradient = any(parameter.requires_grad for parameter in parameters)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
                if wants_gradient:  # compiled modules, and on the CPU fused attention, have no second derivative
                    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                    if "torch._dynamo" in sys.modules:  # slow to import; without it nothing is compiled
                        stack.enter_context(torch.compiler.set_stance("force_eager"))
                torch.manual_seed(self.seed)
                value = functional_call(self.network, given, ())
        finally:
            for part, mode in training.items():
                part.training = mode
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.reshape(()).double().to(device)
        try:
            return torch.tensor(float(value), dtype=torch.float64, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ToposcopeError(
                f"loss: it returned {type(value).__name__}, not one number; return the mean"
            ) from error


class _Network(nn.Module):
    """A module and a function of it, as one module without arguments."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self) -> Any:
        return self.loss(self.model)


def own_loss(model: nn.Module, loss: Loss, seed: int) -> SummedLoss:
    """Return a function of a module as a loss of its parameters that require a gradient, the others fixed.

    Weights of 16 bits are moved in float32 and rounded where the module gets them.
    """
    network = _Network(model, loss)
    moved = {name: p for name, p in network.named_parameters() if p.requires_grad and p.is_floating_point()}
    if not moved:
        raise ToposcopeError("model: no parameter requires a gradient; set requires_grad of those that are to move")
    device = next(iter(moved.values())).device
    wide = torch.float64 if any(p.dtype == torch.float64 for p in moved.values()) else torch.float32
    made = SummedLoss(
        point=flat([p.detach().to(device, wide) for p in moved.values()]),
        blocks={_plain(name): block for name, block in blocks_of(network, moved, "model.").items()},
        counts=(1,),
        total=_Total(network, list(moved), seed),
        pieces=((0,),),
        piece_bytes=(1,),
        aliases={},
        location="model",
        one_by_one=True,
        rounding=ROUNDING * max(torch.finfo(p.dtype).eps for p in moved.values()),
    )
    first, second = made.value_at_checkpoint(), made.value_at_checkpoint()
    if abs(first - second) > made.rounding * abs(first):
        raise ToposcopeError(
            f"loss: two calls with the same weights gave {first:.9g} and {second:.9g}; at every call, "
            "use the same batch and seed what it draws"
        )
    return made


def is_differentiable(loss: SummedLoss) -> bool:
    """Return whether a loss has a gradient by its weights; a function that returns a float has none."""
    if not loss.one_by_one:
        return True
    leaves = [leaf.detach().requires_grad_() for leaf in loss.parameters(loss.point)]
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a number of a loss with a gradient is taken
        return bool(loss.total(leaves, loss.pieces[0]).requires_grad)


def point_of(loss: SummedLoss, state: Mapping[str, Tensor] | nn.Module, number: int) -> Tensor:
    """Return the point of a loss with the weights of a state dictionary, by the names of the model's parameters."""
    given = state.state_dict() if isinstance(state, nn.Module) else state
    plain = {_plain(name): tensor for name, tensor in given.items()}
    parts = []
    for name, block in loss.blocks.items():
        tensor = plain.get(name)
        if tensor is None or tuple(tensor.shape) != block.shape:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}, not {block.shape}"
            raise ToposcopeError(f"path: {name} {found} in state {number}; give state dictionaries of this model")
        parts.append(tensor.detach().to(loss.point))
    return flat(parts)


def _plain(name: str) -> str:
    """Return a name without what `torch.compile` puts into it."""
    return name.replace("_orig_mod.", "")
