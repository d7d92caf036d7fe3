"""The log of one run."""

import re
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.typing import Vector

UNITS = ("nats", "bits", "bits per byte", "nats per byte")
FINAL_SHARE = 0.02
"""Of the logged steps; the final loss is their mean (METHODS 7)."""


@dataclass(frozen=True, eq=False)
class Log:
    """What a run logged, and what is known of the run.

    Attributes
    ----------
    name : str
        Of the run.
    steps : ndarray, shape (n,), int64
        Ascending, each once; steps of the optimiser done since training began.
    loss : ndarray, shape (n,), float64
        Finite and positive, in `unit`.
    learning_rate : ndarray, shape (n,), float64
        NaN where it was not logged.
    last_step : int or None
        Of the planned training; None if nothing tells it.
    parameters, tokens_per_step : float
        NaN if unknown.
    family : str
        Which runs belong together: same data, same tokenizer, same unit. Empty if nothing tells it.
    schedule : str
        The kind of learning-rate schedule, as it was called. Empty if nothing tells it.
    unit : str
        One of `UNITS`.
    target : str
        The column that `loss` was read from.
    norms : dict of ndarray, shape (n,), float64
        ``weight_norm`` and ``grad_norm``, where logged; NaN where not.
    remarks : tuple of str
        What was ignored or guessed while reading, a sentence each.

    Raises
    ------
    ToposcopeError
        If the steps do not ascend, or a loss is not finite and positive.
    """

    name: str
    steps: NDArray[np.int64]
    loss: Vector
    learning_rate: Vector
    last_step: int | None = None
    parameters: float = np.nan
    tokens_per_step: float = np.nan
    family: str = ""
    schedule: str = ""
    unit: str = "nats"
    target: str = "loss"
    norms: dict[str, Vector] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.steps):
            raise ToposcopeError(f"{self.name}: no step has a loss")
        if (np.diff(self.steps) <= 0).any():
            raise ToposcopeError(f"{self.name}: steps do not ascend")
        if not (np.isfinite(self.loss) & (self.loss > 0)).all():
            raise ToposcopeError(f"{self.name}: a loss is not finite and positive")

    @property
    def is_validation(self) -> bool:
        """Whether the losses are of held-out data, by the name of their column."""
        from toposcope.logs.columns import VALIDATION

        return bool(VALIDATION & set(re.split(r"[^a-z]+", self.target.lower())))

    def until(self, step: float) -> Self | None:
        """Return what was logged up to a step, that included; None if nothing was."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        if n == 0:
            return None
        return replace(
            self,
            steps=self.steps[:n],
            loss=self.loss[:n],
            learning_rate=self.learning_rate[:n],
            norms={name: values[:n] for name, values in self.norms.items()},
        )

    def final_loss(self) -> tuple[float, float]:
        """Return the final loss and its standard error (METHODS 7 and 9).

        A validation loss is that of the last evaluation; a training loss the mean of the last 2% of logged steps. The
        standard error is NaN where that is one step.
        """
        if self.is_validation:
            return float(self.loss[-1]), np.nan
        last = self.loss[-max(1, round(FINAL_SHARE * len(self.loss))) :]
        error = float(last.std(ddof=1) / np.sqrt(len(last))) if len(last) > 1 else np.nan
        return float(last.mean()), error
