"""What was predicted: models, their scores on tasks, and the rungs left out that judge the predictions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.forecasting.downstream.ladder import Ladder, Rung
from toposcope.logs.columns import Target
from toposcope.logs.evaluations import MAX_SIZE
from toposcope.typing import Vector


@dataclass(frozen=True)
class Model:
    """A model to predict: one that is not trained yet, or an unfinished run.

    Attributes
    ----------
    name : str
        Rows of the evaluations under this name are of this model itself: they are no rung of the ladder.
    N : float
        Parameters, counted as those of the ladder are.
    D : float
        Tokens at the end of its training.
    """

    name: str
    N: float
    D: float

    def __post_init__(self) -> None:
        for what, value in (("parameters N", self.N), ("tokens D", self.D)):
            if not 1 / MAX_SIZE <= value <= MAX_SIZE:
                raise ToposcopeError(f"model {self.name}: {what} is {value:g}; expected a positive number up to 1e30")


@dataclass(frozen=True)
class LeftOut:
    """A rung that was left out and predicted from smaller ones.

    Attributes
    ----------
    run : str
    N, D : float
    method : str
    predicted, low, high : float
        With its 90% interval. Fits and the width in standard deviations are those without the rungs left out; the
        method, and the weights of the others, are chosen once, by all folds.
    true : float
    fold : str
        What was left out.
    """

    run: str
    N: float
    D: float
    method: str
    predicted: float
    low: float
    high: float
    true: float
    fold: str = ""


@dataclass(frozen=True, eq=False)
class TaskPrediction:
    """The score of a model on a task.

    Attributes
    ----------
    task : str
    target : Target
    model : Model
    score, low, high : float
        With the 90% interval; NaN where refused.
    refusal : str
        Why the score cannot be told and what would help; empty if it is predicted.
    loss, loss_low, loss_high : float
        Predicted loss with its 90% interval, of the method of ``link``; NaN without losses.
    method : str
        The method of ``score``.
    methods : mapping
        What each method predicts, by its name.
    errors : mapping
        The mean absolute error of each method on rungs left out.
    left_out : tuple of LeftOut
    ladder : Ladder
    link : callable, optional
        From losses to scores, of the method of ``score``, or of ``two_stage`` beside a method that needs no loss; None
        without losses.
    own : Rung, optional
        Evaluations of the model itself, if there are any.
    """

    task: str
    target: Target
    model: Model
    score: float
    low: float
    high: float
    refusal: str = ""
    loss: float = np.nan
    loss_low: float = np.nan
    loss_high: float = np.nan
    method: str = ""
    methods: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    link: Callable[[ArrayLike], Vector] | None = None
    own: Rung | None = None
    ladder: Ladder = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of models on tasks, as they were predicted.

    Attributes
    ----------
    predictions : tuple of TaskPrediction
        Of each model the tasks, in the order of both.
    loss_names : mapping
        The loss that is linked to the score of each task; empty if none is.
    remarks : tuple of str
        Of the evaluations and of the ladder, a sentence each.
    """

    predictions: tuple[TaskPrediction, ...]
    loss_names: Mapping[str, str]
    remarks: tuple[str, ...] = ()
