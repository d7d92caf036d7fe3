"""The best model when training and inference are paid from one budget (Sardana et al. 2023).

Training costs 6 N D operations, and inference 2 N for each token (Kaplan et al. 2020, section 2.1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.planner import FLOP, check_positive, optimal_split
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

INFERENCE_FLOP = 2.0
"""Floating-point operations of inference, for each parameter and token."""


@dataclass(frozen=True)
class InferencePlan:
    """A model whose training and inference are paid together.

    Attributes
    ----------
    N, D : float
        Parameters and training tokens.
    loss : float
        Nats.
    training_flops, inference_flops : float
        6 N D and 2 N D_inf.
    """

    N: float
    D: float
    loss: float
    training_flops: float
    inference_flops: float

    @property
    def flops(self) -> float:
        """Their sum."""
        return self.training_flops + self.inference_flops


def cheapest_for_loss(law: ScalingLaw, loss: float, inference_tokens: float) -> InferencePlan:
    """Return the model of a loss for which 6 N D + 2 N D_inf is least (Sardana et al. 2023, equation 3).

    Parameters
    ----------
    law : ScalingLaw
    loss : float
        To be reached, nats.
    inference_tokens : float
        D_inf over the model's life, prompts and answers; 0 gives the compute-optimal model of that loss.

    Raises
    ------
    ToposcopeError
        If the loss is not above the law's floor E, or the tokens are negative.
    """
    _not_negative(inference_tokens)
    gap = loss - law.E
    if not (np.isfinite(loss) and gap > 0):
        raise ToposcopeError(f"loss: {loss:g} given; no model gets below E = {law.E:.4g}")

    def at(logit: float) -> tuple[float, float]:
        """Return N and D, where parameters make up so much of the loss above E."""
        share_n, share_d = 1 / (1 + np.exp(-logit)), 1 / (1 + np.exp(logit))
        return float((law.A / (share_n * gap)) ** (1 / law.alpha)), float((law.B / (share_d * gap)) ** (1 / law.beta))

    # Without inference the shares are as beta to alpha.
    return _planned(
        law, *at(_root(_balance(law, at, inference_tokens), np.log(law.beta / law.alpha))), inference_tokens
    )


def best_for_budget(law: ScalingLaw, budget_flops: float, inference_tokens: float) -> InferencePlan:
    """Return the model of least loss with 6 N D + 2 N D_inf = C.

    Raises
    ------
    ToposcopeError
        If the budget is not finite and positive, or the tokens are negative.
    """
    _not_negative(inference_tokens)
    check_positive("budget", budget_flops)

    def at(log_d: float) -> tuple[float, float]:
        D = float(np.exp(log_d))
        return budget_flops / (FLOP * D + INFERENCE_FLOP * inference_tokens), D

    start = np.log(optimal_split(law, budget_flops)[1])
    return _planned(law, *at(_root(_balance(law, at, inference_tokens), start)), inference_tokens)


def _balance(
    law: ScalingLaw, at: Callable[[float], tuple[float, float]], inference_tokens: float
) -> Callable[[float], float]:
    """Return the function that is 0 at the optimum.

    1% more parameters cost 6 N D + 2 N D_inf and 1% more tokens 6 N D, so their gains have the ratio 1 + D_inf / (3 D)
    there: the score is its logarithm.
    """

    def of(place: float) -> float:
        N, D = at(place)
        return float(law.score(N, D) - np.log1p(INFERENCE_FLOP * inference_tokens / (FLOP * D)))

    return of


def _root(rising: Callable[[float], float], start: float) -> float:
    """Return where a rising function is 0."""
    from scipy.optimize import brentq

    width = 1.0
    while rising(start - width) > 0 or rising(start + width) < 0:
        width *= 2
    return float(brentq(rising, start - width, start + width, xtol=1e-13))


def _planned(law: ScalingLaw, N: float, D: float, inference_tokens: float) -> InferencePlan:
    return InferencePlan(N, D, float(law.loss(N, D)), FLOP * N * D, INFERENCE_FLOP * N * inference_tokens)


def _not_negative(inference_tokens: float) -> None:
    if not (np.isfinite(inference_tokens) and inference_tokens >= 0):
        raise ToposcopeError(f"inference tokens: {inference_tokens:g} given; expected 0 or more")
