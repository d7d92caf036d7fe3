"""What the blocks of a model do on a small fixed batch: outputs, attention, routing, dead and saturated units."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.roles import role_of
from toposcope.errors import ToposcopeError, choices, message_of
from toposcope.monitor.parameters import names_of, unwrapped
from toposcope.monitor.preserved import evaluating
from toposcope.monitor.sinks.terminal import echo
from toposcope.probes.activations import (
    ATTENTION,
    HIDDEN_STATES,
    KURTOSIS,
    LOGIT_MAX,
    MAX_POINTS,
    ROUTING,
    STATISTICS,
    UNITS,
)
from toposcope.probes.hidden_states import evenly, hidden
from toposcope.wording import examples

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from toposcope.monitor.forward_pass import ForwardPass

MAX_DEAD_RANGE = 1e-3
"""A unit is dead if the range of its values is at most this share of the root mean square of its layer."""
MIN_SATURATED_VALUE = 0.99
"""A value is at the limit if it reaches this share of the largest absolute value of its layer."""
MIN_SATURATED_SHARE = 0.95  # a unit is saturated if at least this share of its values are at the limit


@dataclass
class Activations:
    """Results of one forward pass, by pseudo-layer."""

    statistics: dict[str, dict[str, float]] = field(default_factory=dict)
    # shape (n, width); output of each block at some tokens
    states: dict[str, NDArray[np.float32]] = field(default_factory=dict)


class FixedBatch:
    """Runs a model on a fixed batch for some statistics, and restores its state and the random state."""

    def __init__(self, model: "nn.Module", batch: Any, wanted: Collection[str] = STATISTICS) -> None:
        self._model, self._batch, self._wanted = unwrapped(model), batch, frozenset(wanted)
        self._blocks = {hidden(k): named for k, named in enumerate(_blocks(self._model).items(), 1)}
        self._is_watched, self._is_first = True, True

    def run(self) -> Activations:
        """Run the model; return what its blocks did."""
        try:
            activations = self._run()
        except Exception as error:
            if not self._is_watched:
                raise
            self._is_watched = self._is_first = False
            activations = self._run()  # raises if it is the batch that the model cannot take
            if self._wanted & {*ATTENTION, *ROUTING}:
                reason = message_of(error)
                echo(f"batch: attention and routing are not measured, since the model cannot be watched ({reason})")
        if self._is_first:
            self._is_first = False
            self._report_unseen(activations)
        return activations

    def _run(self) -> Activations:
        import torch

        from toposcope.monitor.forward_pass import ForwardPass

        activations, places = Activations(), {p.device for p in self._model.parameters()}
        # A Trainer moves the model, but not this batch, to its device.
        batch = self._batch = moved(self._batch, places.pop()) if len(places) == 1 else self._batch
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            state = stack.enter_context(evaluating(self._model))
            devices = sorted({p.device.index for p in self._model.parameters() if p.device.type == "cuda"})
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            attention, routing = bool(self._wanted & {*ATTENTION}), bool(self._wanted & {*ROUTING})
            seen = ForwardPass(state, attention=attention, routing=routing)
            for handle in self._hooks(activations, seen):
                stack.callback(handle.remove)
            if self._is_watched:
                stack.enter_context(seen.watching())
            if isinstance(batch, Mapping):
                self._model(**batch)
            elif isinstance(batch, tuple | list):
                self._model(*batch)
            else:
                self._model(batch)
        for name, found in seen.statistics().items():
            activations.statistics[name] |= {n: v for n, v in found.items() if n.partition("@")[0] in self._wanted}
        return activations

    def _hooks(self, activations: Activations, seen: "ForwardPass") -> Iterator[Any]:
        for name, (path, block) in self._blocks.items():
            yield block.register_forward_pre_hook(partial(_enter, seen, name), with_kwargs=True)
            yield block.register_forward_hook(partial(self._leave, activations, seen, name))
            for inner, module in block.named_modules():
                if self._wanted & {*UNITS} and role_of(f"{path}.{inner}.weight") == "mlp.out":
                    yield module.register_forward_pre_hook(partial(self._record_units, activations, name))

    def _leave(
        self, activations: Activations, seen: "ForwardPass", name: str, _module: Any, _inputs: Any, output: Any
    ) -> None:
        seen.leave()
        of_block = activations.statistics.setdefault(name, {})
        if self._wanted & {HIDDEN_STATES, KURTOSIS}:
            states = _points(output[0] if isinstance(output, tuple | list) else output)
            if HIDDEN_STATES in self._wanted:
                activations.states[name] = states
            if KURTOSIS in self._wanted:
                of_block |= kurtosis(states)

    def _record_units(self, activations: Activations, name: str, _module: Any, inputs: Any) -> None:
        shares = unit_shares(_points(inputs[0]))
        activations.statistics.setdefault(name, {}).update({n: v for n, v in shares.items() if n in self._wanted})

    def _report_unseen(self, activations: Activations) -> None:
        """Say what of the chosen statistics cannot be measured, and why."""
        found = {path: activations.statistics.get(name, {}) for name, (path, _) in self._blocks.items()}
        attending = [path for path, block in self._blocks.values() if _has_attention(path, block)]
        unseen = [path for path in attending if not found[path].keys() & {*ATTENTION}]
        if unseen and self._wanted & {*ATTENTION}:
            echo(
                f"batch: the attention of {examples(unseen)} cannot be measured: neither scaled_dot_product_attention "
                "nor a softmax over products of queries and keys was seen there, as with FlexAttention, flash-attn, "
                "other kernels, and attention without a softmax"
            )
        hidden_max = [path for path in attending if path not in unseen and LOGIT_MAX not in found[path]]
        if hidden_max and LOGIT_MAX in self._wanted:
            echo(
                f"batch: the largest attention logit of {examples(hidden_max)} is not finite, or the model subtracts "
                "it before the softmax and it cannot be seen"
            )
        is_chosen = self._wanted < set(STATISTICS) and self._wanted & {*ROUTING}
        if is_chosen and not any(of_block.keys() & {*ROUTING} for of_block in found.values()):
            echo("batch: no router of experts was seen: a linear layer with a topk or argmax over its outputs")


def _enter(seen: "ForwardPass", name: str, _module: Any, inputs: Any, named: Any) -> None:
    seen.enter(name, inputs, named)


def _has_attention(path: str, block: "nn.Module") -> bool:
    return any(role_of(f"{path}.{name}").startswith("attn.") for name, _ in block.named_parameters())


def moved(batch: Any, device: "torch.device") -> Any:
    """Return a batch with its tensors on a device."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    return type(batch)(moved(value, device) for value in batch) if type(batch) in (list, tuple) else batch


def check_statistics(chosen: str | Sequence[str] | None) -> frozenset[str]:
    """Return the chosen statistics of a fixed batch: all of them by default."""
    names = STATISTICS if chosen is None else names_of("activations", chosen)
    for name in names:
        if name not in STATISTICS:
            raise ToposcopeError(f"activations: {name!r}: {choices(name, STATISTICS)}")
    return frozenset(names)


def kurtosis(values: NDArray[np.float32]) -> dict[str, float]:
    """Return the kurtosis of all values together, unless they are equal or not finite."""
    if not np.isfinite(values).all():
        return {}
    squares = np.square(values - values.mean(dtype=np.float64))
    variance = squares.mean()
    return {KURTOSIS: float(np.square(squares).mean() / variance**2)} if variance > 0 else {}


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
