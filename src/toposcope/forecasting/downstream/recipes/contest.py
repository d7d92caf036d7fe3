"""The answer to which recipe wins: probabilities, what scales left out say of them, and signal and noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.recipes.forward import ForwardTest
from toposcope.forecasting.downstream.recipes.standings import Quantity, Scale, Standings
from toposcope.typing import Matrix, Vector

SURE = 0.8
"""Probability from which a recipe is named the winner, and a pair counts as decided."""


@dataclass(frozen=True, eq=False)
class DecisionAccuracy:
    """How an approach that sees scales up to one orders the recipes at the largest scale.

    Attributes
    ----------
    approach : str
    scale : Scale
        The largest one seen.
    flops_share : float
        Its compute as a share of that of the largest scale.
    accuracy, low, high : float
        Share of the pairs, with its 90% interval over recipes resampled whole.
    n : int
        Pairs.
    """

    approach: str
    scale: Scale
    flops_share: float
    accuracy: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, eq=False)
class LeftOutTest:
    """An approach on scales left out at the distance in question.

    Attributes
    ----------
    approach : str
    n_scales : int
        Scales left out.
    accuracy, low, high : float
        Share of pairs ordered as measured there, with its 90% interval over recipes.
    gain, gain_low, gain_high : float
        What the share is above that of the single-scale ranking on the same scales; the interval is widened for the
        number of approaches compared.
    """

    approach: str
    n_scales: int
    accuracy: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, eq=False)
class SignalToNoise:
    """How well a quantity tells recipes apart at a scale.

    Attributes
    ----------
    quantity : Quantity
    scale : Scale
    signal : float
        Standard deviation between recipes, noise taken off.
    range : float
        Largest difference between two recipes (the signal of Heineman et al. 2025).
    noise : float
        Standard deviation of one run; NaN if unknown.
    source : str
        What shows the noise: ``seeds``, ``last checkpoints``, ``questions`` or ``unknown``.
    """

    quantity: Quantity
    scale: Scale
    signal: float
    range: float
    noise: float
    source: str

    @property
    def ratio(self) -> float:
        """Signal to noise."""
        return self.signal / self.noise if self.noise > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class Contest:
    """Which recipe wins in one quantity.

    Attributes
    ----------
    quantity : Quantity
    standings : Standings
    scale : Scale
        The largest one measured, whose ranking the answer starts from.
    model : Model or None
        The scale asked about; None for `scale` itself.
    approach : str
        Behind the probabilities: the single-scale ranking unless another one was better on scales left out.
    probability : ndarray, shape (R, R), float64
        That each recipe is above each other; NaN where it cannot be told.
    best : ndarray, shape (R,), float64
        Probability that each recipe is above all others; NaN where it cannot be told.
    winner : str
        Named with a probability of at least `SURE`, where scales left out support it; else empty.
    shortlist : tuple of str
        The fewest recipes that hold the best one with a probability of 90%.
    refusal : str
        Why there are no probabilities, or no winner though they would name one; else empty.
    accuracies : tuple of DecisionAccuracy
        At the largest scale measured, by approach and scale.
    tests : tuple of LeftOutTest
        At the distance asked about; empty where nothing can be left out at it.
    forward : ForwardTest
        Its probabilities on scales left out, each judged by what smaller scales alone had shown.
    signals : tuple of SignalToNoise
        Of the quantity and of its proxies, at every scale.
    ranking_scale : Scale or None
        The smallest scale from which single-scale rankings order at least `SURE` of the pairs as at the largest.
    deciding_flops : float
        Compute from which a comparison tells leader and runner-up apart with probability `SURE`; infinite if none
        does, NaN where unknown.
    """

    quantity: Quantity
    standings: Standings
    scale: Scale
    model: Model | None
    approach: str
    probability: Matrix
    best: Vector
    winner: str
    shortlist: tuple[str, ...]
    refusal: str
    accuracies: tuple[DecisionAccuracy, ...]
    tests: tuple[LeftOutTest, ...]
    forward: ForwardTest
    signals: tuple[SignalToNoise, ...]
    ranking_scale: Scale | None
    deciding_flops: float

    @property
    def order(self) -> tuple[int, ...]:
        """Places of the recipes in `standings`, the likeliest to win first."""
        measured = np.nan_to_num(self.standings.values[:, self.standings.scales.index(self.scale)], nan=-np.inf)
        return tuple(np.lexsort((np.arange(len(measured)), -measured, -np.nan_to_num(self.best))).tolist())

    @property
    def leaders(self) -> tuple[int, int]:
        """Places of the leader and of the runner-up."""
        first, second, *_ = self.order
        return first, second

    @property
    def signal(self) -> SignalToNoise | None:
        """Signal and noise of the quantity itself at `scale`."""
        found = (each for each in self.signals if each.quantity == self.quantity and each.scale == self.scale)
        return next(found, None)

    @property
    def test(self) -> LeftOutTest | None:
        """How the approach behind the probabilities did on scales left out."""
        return next((each for each in self.tests if each.approach == self.approach), None)


@dataclass(frozen=True, eq=False)
class RecipeReport:
    """Which recipe wins, for each quantity.

    Attributes
    ----------
    contests : tuple of Contest
        The mean over tasks first, where there are several.
    remarks : tuple of str
        What was left out or is not known, a sentence each.
    """

    contests: tuple[Contest, ...]
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        first = self.contests[0]
        return f"<RecipeReport: {first.quantity.name}: {first.winner or 'not decided'}>"

    def _repr_html_(self) -> str:
        from toposcope.forecasting.downstream.recipes.wording import html

        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dictionaries; what is unknown is None."""
        from toposcope.forecasting.downstream.recipes.tables import report_dict

        return report_dict(self)
