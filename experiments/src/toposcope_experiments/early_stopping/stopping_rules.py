"""Rules that stop a run before its end, each by what was measured until then, and the grids they are tried over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import Vector

NEURAL_PERSISTENCE, LOSS = "neural_persistence_patience", "loss_patience"
TRAINING_LOSS, WEIGHT_NORM = "training_loss_patience", "weight_norm_patience"
"""Rules that are tried where a run was trained for the purpose; studies are tried with `RULES`."""
GAIN, FRACTION, LAST = "forecast_gain", "fixed_fraction", "last_step"
RULES = (NEURAL_PERSISTENCE, LOSS, GAIN, FRACTION, LAST)

PATIENCES = (1, 2, 3, 5, 8)
BURN_INS = (0, 2, 5, 10)  # measurements, as are patiences
DELTAS = (0.0, 0.001, 0.01)  # of neural persistence (0 to 1), or nats of the loss
PRICES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # nats for the compute of a whole run as planned
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

ROUNDING = 1e-6  # steps; a fraction of a whole number of steps may lie just above it


@dataclass(frozen=True)
class Setting:
    """A rule and its parameters; those of other rules are None."""

    rule: str
    patience: int | None = None  # measurements
    burn_in: int | None = None  # measurements
    delta: float | None = None  # the least improvement that counts, in the unit of what is watched
    price: float | None = None  # nats for the compute of a whole run
    fraction: float | None = None  # of the steps of a run


def grid(rule: str, deltas: Sequence[float] = DELTAS) -> Iterator[Setting]:
    """Yield all settings of a rule; those of patience for some `deltas`."""
    if rule in (NEURAL_PERSISTENCE, LOSS, TRAINING_LOSS, WEIGHT_NORM):
        for delta in deltas:
            for burn_in in BURN_INS:
                yield from (Setting(rule, patience, burn_in, delta) for patience in PATIENCES)
    elif rule == GAIN:
        yield from (Setting(rule, price=price) for price in PRICES)
    elif rule == FRACTION:
        yield from (Setting(rule, fraction=fraction) for fraction in FRACTIONS)
    else:
        yield Setting(rule)


def below_price(gains: Vector, shares: Vector, price: float) -> int | None:
    """Stop when the rest of training costs more than its predicted gain."""
    left = 1 - shares
    rate = np.divide(gains, left, where=left > 0, out=np.full(len(gains), np.nan))
    return _first(rate < price)


def at_fraction(steps: Vector, fraction: float) -> int | None:
    """Stop at the first measurement at or after a fraction of the steps; `steps` are those of measurements, (n,)."""
    return _first(steps >= fraction * steps[-1] - ROUNDING)


def _first(found: NDArray[np.bool_]) -> int | None:
    places = np.flatnonzero(found)
    return int(places[0]) if len(places) else None
