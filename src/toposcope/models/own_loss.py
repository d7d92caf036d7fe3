"""A function of any PyTorch module as a loss of its weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from toposcope.errors import ToposcopeError
from toposcope.models.loss_planes.surface import ROUNDING
from toposcope.models.summed_loss import SummedLoss, blocks_of, flat


class FunctionOfModule(nn.Module):
    """A module and a function of it, as one module without arguments; the parameters that it moves."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any], seed: int) -> None:
        super().__init__()
        self.model, self.loss, self.seed = model, loss, seed
        self.moved = {name: p for name, p in self.named_parameters() if p.requires_grad and p.is_floating_point()}
        if not self.moved:
            raise ToposcopeError("model: no parameter requires a gradient; set requires_grad of those that are to move")

    def forward(self) -> Any:
        """Return what the function gives for the module."""
        return self.loss(self.model)

    def as_loss(self) -> SummedLoss:
        """Return it as a loss of what it moves; 16-bit weights are moved in float32, and rounded for the module."""
        dtypes = {parameter.dtype for parameter in self.moved.values()}
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        device = next(iter(self.moved.values())).device
        made = SummedLoss(
            point=flat([parameter.detach().to(device, wide) for parameter in self.moved.values()]),
            blocks={_plain(name): block for name, block in blocks_of(self, self.moved, "model.").items()},
            counts=(1,),
            total=self.total,
            pieces=((0,),),
            piece_bytes=(1,),
            aliases={},
            location="model",
            one_by_one=True,
            rounding=ROUNDING * max(torch.finfo(dtype).eps for dtype in dtypes),
        )
        first, second = made.value_at_checkpoint(), made.value_at_checkpoint()
        if abs(first - second) > made.rounding * abs(first):
            raise ToposcopeError(
                f"loss: two calls with the same weights gave {first:.9g} and {second:.9g}; at every call, "
                "use the same batch and seed what it draws"
            )
        return made

    def total(self, parameters: Sequence[Tensor], _places: Sequence[int]) -> Tensor:
        """Return the loss with other weights; buffers are copies, made anew, and random numbers begin at one seed."""
        given: dict[str, Tensor] = {
            name: parameter.to(own, copy=not parameter.requires_grad)
            for (name, own), parameter in zip(self.moved.items(), parameters, strict=True)
        }
        given |= {name: buffer.clone() for name, buffer in self.named_buffers()}
        training = {part: part.training for part in self.modules()}
        device = parameters[0].device
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
                if any(parameter.requires_grad for parameter in parameters):
                    # compiled modules, and on the CPU fused attention, have no second derivative
                    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                    if "torch._dynamo" in sys.modules:  # slow to import; without it nothing is compiled
                        stack.enter_context(torch.compiler.set_stance("force_eager"))
                torch.manual_seed(self.seed)
                value = functional_call(self, given, ())
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


def point_of(loss: SummedLoss, state: Mapping[str, Tensor] | nn.Module, number: int) -> Tensor:
    """Return the point of a loss with the weights of a state dictionary, by name."""
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
