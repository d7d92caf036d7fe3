"""TensorBoard: reports to the `SummaryWriter` that is open in this process, whoever opened it."""

import gc
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toposcope.monitor.events import Alert, Event
from toposcope.monitor.sinks.sink import Tracker

WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules that define a `SummaryWriter`, with the same interface."""


class TensorBoardSink(Tracker):
    """Adds scalars, and alerts as text, at the steps of the monitor; nothing if the writer is closed.

    A closed writer would open another file.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def put(self, event: Event) -> None:
        """Report one event."""
        if _is_open(self._writer):
            super().put(event)

    def alert(self, alert: Alert) -> None:
        """Add a text."""
        self._writer.add_text("toposcope/alert", alert.message, alert.step)

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


def _is_open(writer: Any) -> bool:
    return getattr(writer, "file_writer", None) is not None


def SINK(directory: Path) -> TensorBoardSink | None:  # noqa: N802 - the name of a registry
    """Return a sink for the writer whose folder is the outermost, if one is open."""
    classes = tuple(sys.modules[name].SummaryWriter for name in WRITERS if name in sys.modules)
    if not classes:
        return None
    # Writers refer to their class. `isinstance` would run code of lazy objects, so compare types.
    writers = [
        thing
        for thing in gc.get_referrers(*_with_subclasses(classes))
        if issubclass(type(thing), classes) and _is_open(thing)
    ]
    outermost = min(writers, key=lambda writer: (len(_folder(writer).parts), _folder(writer)), default=None)
    return None if outermost is None else TensorBoardSink(outermost)


def _with_subclasses(classes: Iterable[type]) -> list[type]:
    return [each for cls in classes for each in (cls, *_with_subclasses(cls.__subclasses__()))]


def _folder(writer: Any) -> Path:
    return Path(str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", "")))
