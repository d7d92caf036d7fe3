"""Jobs that the training thread queues for the monitor's thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints import Layer
from toposcope.monitor.activations import Activations
from toposcope.monitor.gathering import Copy
from toposcope.monitor.quantities import PendingQuantities
from toposcope.probes import Probe


@dataclass(frozen=True)
class Snapshot:
    """Measure a copy of one layer."""

    layer: Layer
    copy: Copy
    probes: Sequence[Probe]


@dataclass(frozen=True)
class StepStart:
    """Begin the measurement of a step; `is_extra` if it is not due, and measured only because training resumes here."""

    step: int
    is_extra: bool = False


@dataclass(frozen=True)
class StepEnd:
    """End the measurement of a step, with what the training thread measured."""

    training: PendingQuantities
    activations: Activations | None = None
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class Write:
    """Write everything that waits: a checkpoint is being saved, from which training may resume."""


@dataclass(frozen=True)
class Finish:
    """Finish the run."""

    status: str
    step: int


@dataclass(frozen=True)
class Saved:
    """Examine a saved checkpoint."""

    path: Path
    step: int


Job = Snapshot | StepStart | StepEnd | Saved | Write | Finish
