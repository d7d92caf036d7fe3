"""What follows from an event: alerts, and forecasts now and then."""

from collections.abc import Sequence
from pathlib import Path

from toposcope.monitor.events import Event


class Watch:
    """Looks at every event of a run."""

    def __init__(self, directory: Path, run: str, last_step: int | None) -> None:
        self._place = directory, run, last_step

    def __call__(self, event: Event) -> Sequence[Event]:
        """Return what follows from an event."""
        return []
