"""What a monitor passes on to whoever listens: values the loop logged, measurements, alerts, forecasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Logged:
    """Values that the training loop logged at a step.

    Attributes
    ----------
    step : int
        Updates made.
    values : mapping of str to float
        By the names the loop uses, such as ``loss``, ``lr``, ``grad_norm``; not all need be finite.
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
        What was due and left out, and why, a short sentence each.
    """

    step: int
    rows: Mapping[tuple[str, str], Mapping[str, float]]
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class Alert:
    """Something that went wrong in training.

    Attributes
    ----------
    kind : str
        Name of the check, such as ``loss spike``.
    step : int
        At which it was noticed.
    since : int
        The first step it concerns.
    place : str
        Layer, quantity or rank; empty for the run as a whole.
    message : str
        One sentence: what, where, since when.
    evidence : mapping of str to float
        The numbers behind it, such as ``value`` and ``limit``.
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
        Nats a token; the interval is of 90%.
    advice : str
        Whether to go on, in a sentence; empty where nothing can be said.
    """

    step: int
    last_step: int
    loss: float
    low: float
    high: float
    advice: str = ""


Event = Logged | Measured | Alert | Forecasted
