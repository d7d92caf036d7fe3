"""What a monitor stored of a run besides its log: how the run is, its alerts, and looks at its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRAINING, COMPLETE, DIVERGED, FAILED = "running", "complete", "diverged", "failed"
"""Status of a run, as its writer stores it."""


@dataclass(frozen=True)
class LayerLooks:
    """What was seen of the layers: the last gradient and update of each, and at how many steps they were looked at.

    Attributes
    ----------
    n_layers, n_updated : int
        Layers with a measured gradient, and with a measured update.
    idle : sequence of str
        Layers whose last gradient, or last update, was 0.
    n_nonfinite : int
        Weights and gradients that were NaN or infinite.
    n_looks : int
        Steps at which each layer was looked at, at the least.
    first, last : int
        The first and the last of these steps.
    """

    n_layers: int = 0
    n_updated: int = 0
    idle: Sequence[str] = ()
    n_nonfinite: int = 0
    n_looks: int = 0
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Watched:
    """What a monitor stored of a run.

    Attributes
    ----------
    status : str
        `TRAINING`, `COMPLETE`, `DIVERGED` or `FAILED`.
    alerts : sequence of mapping
        Newest first: ``step``, ``since``, ``check``, ``place``, ``message``.
    layers : LayerLooks
    forecasts : sequence of mapping
        Oldest first: ``step``, ``last_step``, ``loss``, ``low``, ``high``, ``target``.
    n_examined, n_faults : int
        Saved checkpoints that the doctor examined, and faults that it found.
    updated : float, optional
        When its writer last wrote, in seconds since 1970.
    step_seconds : float, optional
        Time of a step.
    """

    status: str = TRAINING
    alerts: Sequence[Mapping[str, Any]] = ()
    layers: LayerLooks = field(default_factory=LayerLooks)
    forecasts: Sequence[Mapping[str, Any]] = ()
    n_examined: int = 0
    n_faults: int = 0
    updated: float | None = None
    step_seconds: float | None = None
