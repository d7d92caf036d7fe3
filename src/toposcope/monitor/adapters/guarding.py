"""Keeps exceptions of a callback from stopping the training."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from toposcope.errors import message_of
from toposcope.monitor.sinks.terminal import say


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
