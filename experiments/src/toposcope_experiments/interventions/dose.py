"""Steering a placebo so that it changes the statistic under test as much as the statistic's own push does."""

import torch
from torch import Tensor

MAX_FACTOR = 10.0  # times the share of the statistic, which no placebo exceeds
MIN_FACTOR = 0.05
SCALE = 0.02  # logarithmic change below which doses are not compared
MAX_STEP = 0.7  # of the logarithm of a share, from one measurement to the next
PROPORTIONAL, INTEGRAL = 3.0, 0.6


def steered(shares: Tensor, errors: Tensor, doses: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the shares until the next measurement, and the errors now.

    A proportional-integral controller of the logarithm of the share, with bounds.

    Parameters
    ----------
    shares, errors : Tensor, shape (runs,)
        As they were returned at the measurement before.
    doses, targets : Tensor, shape (runs,)
        Logarithmic changes of the statistic against the base run, of the placebo and of the statistic's own arm, both
        counted in the direction of the push.
    share : float
        That of the statistic.
    """
    found = ((targets - doses) / targets.abs().clamp(min=SCALE)).clamp(-1, 1).nan_to_num()
    change = PROPORTIONAL * (found - errors) + INTEGRAL * found
    steps = torch.exp(change.clamp(-MAX_STEP, MAX_STEP))
    return (shares * steps).clamp(MIN_FACTOR * share, MAX_FACTOR * share), found
