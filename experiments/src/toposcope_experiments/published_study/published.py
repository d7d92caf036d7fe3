"""Published numbers of runs, which a study compares with its own."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

import msgspec

from toposcope_experiments.published_study.findings import FORECASTERS, STEP

_QUANTITY = re.compile(
    r"loss|np_mean(_(std|min|max))?|H\d+\.(total(_p2)?|mean|max|std|entropy(_normalized)?|count|n_(significant|zero|essential))"
)
SPECTRAL_QUANTITIES = (
    *("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "stable_rank", "top_eigenvalue"),
    *("anisotropy", "mean_norm", "rms_radius", "two_nn", "pca_variance"),
)
"""Quantities of a cloud of hidden states that are not topological."""


class Law(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A published power law in the number of parameters.

    Attributes
    ----------
    exponent, r_squared : float
        Of the least-squares line through the logarithms.
    rho, p : float, optional
        Spearman of the quantity with the number of parameters.
    """

    exponent: float
    r_squared: float
    rho: float | None = None
    p: float | None = None

    def __post_init__(self) -> None:
        _between("exponent", self.exponent)
        _between("r_squared", self.r_squared, high=1)
        _between("rho", self.rho or 0, -1, 1)
        _between("p", self.p or 0, 0, 1)


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published values of one run at some of its steps.

    Attributes
    ----------
    steps : list of int
    values : dict of list of float
        By quantity: ``np_mean``, ``H0.total`` and so on.
    """

    steps: list[int]
    values: dict[str, list[float]]

    def __post_init__(self) -> None:
        for step in self.steps:
            _between("steps", step, 0)
        if any(after <= before for before, after in pairwise(self.steps)):
            raise ValueError("steps: each must be larger than the one before")
        _known("values", self.values)
        for quantity, values in self.values.items():
            for value in values:
                _between(f"values.{quantity}", value)
            if len(values) != len(self.steps):
                raise ValueError(f"{quantity} has {len(values)} values for {len(self.steps)} steps")


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Published numbers, which a report compares with its own.

    Quantities are ``np_mean``, ``H0.total``, ``H1.total``, ``loss``, and the other statistics of neural persistence and
    of diagrams; for hidden states also ``effective_rank`` and the spectral measures. Impossible values are refused
    with a ValueError that names the field: numbers that are not finite, correlations outside [-1, 1], intervals from
    high to low, unknown quantities or forecasters, fractions outside (0, 1), negative or disordered steps.

    Attributes
    ----------
    source : str
        Where they were published.
    subject : "weights" or "hidden_states"
        What was measured. Hidden states are compared with the probe of that name, and their correlations are with the
        loss on a fixed text, which has the same ranks as perplexity.
    final_loss : dict of float
        By run; the loss of the last batch.
    correlations : dict of dict of float
        By quantity, then by run: Spearman with the loss of one batch. The quantity ``step`` is the step itself.
    given_step : dict of dict of float
        By quantity, then by run: the partial correlation given the step.
    intervals : dict of dict of (float, float)
        By quantity, then by run: bootstrap interval of the correlation.
    prediction_errors : dict of dict of float
        By forecaster (``loss_only``, ``tda_only``, ``combined``), then by fraction of training (``0.2``): mean absolute
        error of the final loss over runs, in nats.
    largest_change, diminishing_returns : dict of int
        Step by run.
    training_steps : dict of int
        By run: for how many steps it was trained, which the steps of its phases are a share of.
    scaling : dict of Law
        By quantity, of final values.
    traces : dict of Trace
        By run.
    """

    source: str = ""
    subject: Literal["weights", "hidden_states"] = "weights"
    final_loss: dict[str, float] = {}
    correlations: dict[str, dict[str, float]] = {}
    given_step: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    prediction_errors: dict[str, dict[str, float]] = {}
    largest_change: dict[str, int] = {}
    diminishing_returns: dict[str, int] = {}
    training_steps: dict[str, int] = {}
    scaling: dict[str, Law] = {}
    traces: dict[str, Trace] = {}

    def __post_init__(self) -> None:
        _each("final_loss", self.final_loss)
        _known("correlations", [quantity for quantity in self.correlations if quantity != STEP])
        for name in ("given_step", "intervals"):
            _known(name, getattr(self, name))
        for name in ("correlations", "given_step"):
            for quantity, values in getattr(self, name).items():
                _each(f"{name}.{quantity}", values, -1, 1)
        for quantity, intervals in self.intervals.items():
            for run, (low, high) in intervals.items():
                place = f"intervals.{quantity}.{run}"
                _between(place, low, -1, 1)
                _between(place, high, -1, 1)
                if low > high:
                    raise ValueError(f"{place}: from {low:g} to {high:g}; the lower end comes first")
        for forecaster, errors in self.prediction_errors.items():
            if forecaster not in FORECASTERS:
                raise ValueError(
                    f"prediction_errors: unknown forecaster {forecaster!r}; use one of {', '.join(FORECASTERS)}"
                )
            _each(f"prediction_errors.{forecaster}", errors, 0)
            for fraction in errors:
                if not 0 < _number(fraction) < 1:
                    raise ValueError(
                        f"prediction_errors.{forecaster}: {fraction!r} is not a fraction of training; use a number "
                        "between 0 and 1"
                    )
        for name in ("largest_change", "diminishing_returns"):
            _each(name, getattr(self, name), 0)
            for run, step in getattr(self, name).items():
                _between(f"{name}.{run}", step, high=self.training_steps.get(run, math.inf))
        _each("training_steps", self.training_steps, 1)
        _known("scaling", self.scaling)

    def shares_of_training(self, steps: Mapping[str, int]) -> dict[str, float]:
        """Return steps of published runs as a share of the published length of each; those of unknown length not."""
        return {run: step / self.training_steps[run] for run, step in steps.items() if run in self.training_steps}

    def runs(self) -> list[str]:
        """Return the runs that have any published number, each once."""
        return list(dict.fromkeys(self._runs()))

    def _runs(self) -> Iterator[str]:
        yield from self.final_loss
        for by_run in (*self.correlations.values(), *self.given_step.values()):
            yield from by_run
        for intervals in self.intervals.values():
            yield from intervals
        yield from (*self.largest_change, *self.diminishing_returns, *self.traces)


def is_quantity(name: str) -> bool:
    """Return whether a name is a quantity that a study can compare with its own."""
    return name in SPECTRAL_QUANTITIES or bool(_QUANTITY.fullmatch(name))


def _known(field: str, names: Iterable[str]) -> None:
    for name in names:
        if not is_quantity(name):
            raise ValueError(f"{field}: unknown quantity {name!r}; use loss, np_mean, H0.total, H1.total or similar")


def _each(field: str, values: Mapping[str, Any], low: float = -math.inf, high: float = math.inf) -> None:
    for name, value in values.items():
        _between(f"{field}.{name}", value, low, high)


def _between(field: str, value: float, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse a number that is not finite or outside its limits."""
    if not math.isfinite(value):
        raise ValueError(f"{field}: {value} is not finite")
    if not low <= value <= high:
        limits = f"at least {low:g}" if high == math.inf else f"at most {high:g}"
        both = math.isfinite(low) and math.isfinite(high)
        raise ValueError(f"{field}: {value:g}; it must be {f'from {low:g} to {high:g}' if both else limits}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
