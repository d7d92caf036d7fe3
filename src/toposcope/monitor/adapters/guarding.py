"""What a callback calls, and what keeps its exceptions from stopping the training."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toposcope.errors import message_of
from toposcope.monitor.sinks.terminal import say

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Watcher(Protocol):
    """The part of a `Monitor` that callbacks use."""

    step: int

    def watch(self, model: "nn.Module", last_step: int | None = None) -> None: ...  # noqa: D102
    def attach(self, optimizer: "Optimizer", step: int | None = None) -> None: ...  # noqa: D102
    def log(self, step: int | None = None, **values: Any) -> None: ...  # noqa: D102
    def saved(self, path: Path, step: int | None = None) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102
    def __exit__(self, *exception: Any) -> None: ...


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of a callback so that an exception is printed once, and the callback does nothing from then on."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> None:
        if getattr(self, "_is_broken", False):
            return
        try:
            method(self, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the training
            self._is_broken = True
            say(f"{type(error).__name__}: {message_of(error)}; training continues without the monitor")

    return call
