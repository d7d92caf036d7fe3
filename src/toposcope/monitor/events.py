"""Events of a monitored run: logged values, measurements, notes, alerts, forecasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DIVERGED = "diverged"  # kind of the alert that a run ended badly, in place of a forecast


@dataclass(frozen=True)
class Logged:
    """Values that the training loop logged at a step.

    Attributes
    ----------
    step : int
        Optimizer steps so far.
    values : mapping of str to float
        Keyed by the names that the loop uses, such as ``loss``, ``lr``, ``grad_norm``; may be NaN or infinite.
    """

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Measured:
    """Statistics that were measured at a step.

    Attributes
    ----------
    step : int
    rows : mapping of (str, str) to mapping of str to float
        (layer or ``network``, name of the probe) -> statistic -> value.
    skipped : sequence of str
        Measurements that were due and skipped, each with the reason.
    """

    step: int
    rows: Mapping[tuple[str, str], Mapping[str, float]]
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class Looked:
    """What a look at the parameters saw, besides what is measured.

    Attributes
    ----------
    step : int
    gradients : mapping of str to bool
        Of each parameter in training, whether its gradient is there and not 0.
    dead_units : mapping of str to float
        Of each matrix with a gradient, the share of its units whose gradient is 0.
    changed : mapping of str to float
        Of each matrix, the share of some weights that the step changed.
    cosines : mapping of str to float
        Of each matrix, between the step and the gradient, of these weights; below 0 where the loss is to fall.
    """

    step: int
    gradients: Mapping[str, bool]
    dead_units: Mapping[str, float]
    changed: Mapping[str, float]
    cosines: Mapping[str, float]


@dataclass(frozen=True)
class Note:
    """A change of the training that was made on purpose: layers were frozen, thawed, or given to the optimizer.

    Attributes
    ----------
    step : int
        First step it affects.
    layers : sequence of str
    message : str
    """

    step: int
    layers: Sequence[str]
    message: str


@dataclass(frozen=True)
class Alert:
    """Something that went wrong in training.

    Attributes
    ----------
    kind : str
        Name of the check, such as ``loss spike``.
    step : int
        Step at which it was noticed.
    since : int
        First step that may be affected.
    place : str
        Layer, quantity or rank; empty if it concerns the whole run.
    message : str
        What went wrong, where and when; of the loss also the checkpoint to go back to, and what others did.
    evidence : mapping of str to float
        The numbers behind the alert, such as ``value`` and ``limit``.
    """

    kind: str
    step: int
    since: int
    place: str
    message: str
    evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecasted:
    """A forecast of the final loss that was made at a step.

    Attributes
    ----------
    step, last_step : int
    loss, low, high : float
        Final loss in nats per token, with its 90% interval.
    advice : str
        A sentence on whether to continue the run; empty if none can be given.
    target : str
        ``validation loss`` or ``training loss``.
    """

    step: int
    last_step: int
    loss: float
    low: float
    high: float
    advice: str = ""
    target: str = ""


Event = Logged | Measured | Note | Alert | Forecasted


def number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def factor(value: float) -> str:
    """Format a factor, rounded more if it is large."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
