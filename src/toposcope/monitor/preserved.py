"""The state of a model, put back after a forward pass that must leave no trace."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

CONTAINERS = (dict, OrderedDict, list, set, deque)


class Preserved:
    """Modes, attributes, and the tensors, lists and dicts in them, of every module of a model.

    Tensors are copied only when `before_write` says that they are about to be written.
    """

    def __init__(self, model: "nn.Module") -> None:
        self._attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
        values = [value for attributes, _ in self._attributes for value in attributes.values()]
        self._containers = [(each, copy(each)) for each in values if type(each) in CONTAINERS]
        self._tensors: dict[int, list[Tensor]] = {}
        for tensor in _plain_tensors(chain(values, *(_items(each) for each, _ in self._containers))):
            self._tensors.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        self._copies: list[tuple[Tensor, Tensor]] = []

    def before_write(self, tensor: "Tensor") -> None:
        """Copy the tensors of the model that share memory with this one, unless they are copied already."""
        for own in self._tensors.pop(tensor.untyped_storage().data_ptr(), ()):
            self._copies.append((own.detach(), own.detach().clone()))

    def restore(self) -> None:
        """Put everything back that changed."""
        for own, before in self._copies:
            own.copy_(before)
        for now, was in self._containers:
            if not _is_same(now, was):
                now.clear()
                (now.update if hasattr(now, "update") else now.extend)(was)
        for attributes, was in self._attributes:
            if not _is_same(attributes, was):
                attributes.clear()
                attributes.update(was)


@contextmanager
def evaluating(model: "nn.Module") -> Iterator[Preserved]:
    """Put a model into evaluation mode, and put its state back afterwards."""
    state = Preserved(model)
    model.eval()
    try:
        yield state
    finally:
        state.restore()


def _items(container: Any) -> Iterator[Any]:
    return chain(container, container.values()) if isinstance(container, dict) else iter(container)


def _is_same(now: Any, was: Any) -> bool:
    return len(now) == len(was) and all(a is b for a, b in zip(_items(now), _items(was), strict=True))


def _plain_tensors(values: Iterable[Any]) -> "Iterator[Tensor]":
    """Yield the tensors in memory of their own; those of other classes may have none."""
    import torch

    for value in values:
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.numel():
            yield value
