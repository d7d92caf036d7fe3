"""The compute-optimal model where unique data are scarce and read more than once (Muennighoff et al. 2023)."""

from dataclasses import dataclass

import numpy as np

from toposcope.forecasting.scaling.planner import FLOP, check_positive, optimal_parameters, optimal_split
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

R_D, R_N = 15.387756, 5.309743
"""R*_D and R*_N as published: how fast repetitions, and parameters beyond what the unique data warrant, lose their
worth. They are borrowed: points whose data were read once hold no information on them."""
BORROWED = (
    "what repeated tokens are worth is borrowed (Muennighoff et al. 2023, R*_D 15.4 and R*_N 5.3), not fitted to these "
    "points"
)


@dataclass(frozen=True)
class RepeatedPlan:
    """The model of least loss for a budget and so many unique tokens.

    Attributes
    ----------
    N, D : float
        Parameters, and tokens trained on with repetitions; C = 6 N D.
    epochs : float
        D over the unique tokens; below 1 if they are not all needed.
    loss : float
        Nats.
    loss_of_fresh_data : float
        Loss that the budget would reach without repetitions.
    remarks : tuple of str
    """

    N: float
    D: float
    epochs: float
    loss: float
    loss_of_fresh_data: float
    remarks: tuple[str, ...]


def worth(total: float, unique: float, constant: float) -> float:
    """Return D' = U + U R* (1 - exp(-R / R*)), R = D / U - 1: how many fresh tokens D of them are worth.

    Muennighoff et al. 2023, section 3; without repetitions D' = D. Parameters beyond U_N likewise, with R*_N.
    """
    if total <= unique:
        return total
    return float(unique * (1 - constant * np.expm1(-(total / unique - 1) / constant)))


def repeated_loss(law: ScalingLaw, N: float, D: float, unique_tokens: float) -> float:
    """Return E + A / N'^alpha + B / D'^beta, nats: the loss of D tokens of which so many are unique.

    N' counts parameters beyond U_N, the compute-optimal number for the unique tokens that are read, at less than one.
    """
    unique = min(unique_tokens, D)
    warranted = min(optimal_parameters(law, unique), N)
    return float(law.loss(worth(N, warranted, R_N), worth(D, unique, R_D)))


def plan_repeated(law: ScalingLaw, budget_flops: float, unique_tokens: float) -> RepeatedPlan:
    """Return the model of least loss for a budget and so many unique tokens.

    Raises
    ------
    ToposcopeError
        If the budget or the number of tokens is not finite and positive.
    """
    from scipy.optimize import brentq

    check_positive("unique tokens", unique_tokens)
    N, D = optimal_split(law, budget_flops)
    fresh = float(law.loss(N, D))
    if unique_tokens >= D:
        return RepeatedPlan(N, D, D / unique_tokens, fresh, fresh, ())
    warranted = optimal_parameters(law, unique_tokens)

    def score(log_n: float) -> float:
        """Return the logarithm of what 1% more parameters bring over what 1% more tokens bring; it falls with N."""
        N, D = np.exp(log_n), budget_flops / (FLOP * np.exp(log_n))
        worth_n, worth_d = worth(N, warranted, R_N), worth(D, unique_tokens, R_D)
        faded = (N / warranted - 1) / R_N - (D / unique_tokens - 1) / R_D
        return float(law.score(worth_n, worth_d) + np.log(N / worth_n * worth_d / D) - faded)

    # With U_N parameters more of them bring more; with every token read once, more tokens do.
    most = budget_flops / (FLOP * unique_tokens)
    N = float(np.exp(brentq(score, np.log(warranted), np.log(most), xtol=1e-13)))
    D = budget_flops / (FLOP * N)
    loss = repeated_loss(law, N, D, unique_tokens)
    return RepeatedPlan(N, D, D / unique_tokens, loss, fresh, (BORROWED,))
