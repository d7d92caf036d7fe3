"""What a callback must never do: stop the training that it looks at."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from toposcope.monitor.sinks.outlets import one_line
from toposcope.monitor.sinks.terminal import say


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of a callback fail without a consequence: it is said once, then the callback does nothing."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> None:
        if getattr(self, "_is_broken", False):
            return
        try:
            method(self, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the training
            self._is_broken = True
            say(f"{type(error).__name__}: {one_line(error)}; training goes on without the monitor")

    return call
