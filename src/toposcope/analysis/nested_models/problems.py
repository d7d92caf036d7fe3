"""A target at a fraction of training: what is predicted, for which runs, and how errors count."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.analysis.nested_models.columns import FractionColumns
from toposcope.analysis.nested_models.population import GAP, NestedPopulation
from toposcope.typing import Indices, Matrix, Steps, Vector

Kind = Literal["loss", "number", "event"]
DIVERGENCE = "divergence or spike"
NEXT_SHARE = 0.1
"""Of all steps: divergence is looked for in the next tenth."""
SPIKE_RISE = 0.1
"""A spike is a rise of the training loss by a tenth."""
SPIKE_ROWS = 10
"""Both levels of a spike are means of so many logged losses."""
MIN_PROBABILITY = 0.02
"""Probabilities are clipped, so that no single run decides the log loss."""
MAX_SPREADS = 5.0
"""Targets further from the median, in robust standard deviations, count as this far in fitting."""
NORMAL = 1.4826
"""Standard deviation of a normal variable over its median absolute deviation."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is predicted at one fraction.

    Attributes
    ----------
    target : str
    kind : "loss", "number" or "event"
        Logarithms of losses are fitted. Errors are absolute ones, and of an event the log loss.
    values : ndarray, shape (n,)
        Of the runs whose target is known; 0 or 1 of an event.
    columns : FractionColumns
        Of the same runs.
    groups : dict of ndarray of int, shape (n,)
    """

    target: str
    kind: Kind
    values: Vector
    columns: FractionColumns
    groups: dict[str, Indices]

    def fitted(self) -> Vector:
        """Return what models are fitted to."""
        return np.log(self.values) if self.kind == "loss" else self.values

    def errors(self, predicted: Matrix) -> Matrix:
        """Return the errors of predictions of `fitted`; the last axis is that of the runs."""
        if self.kind == "event":
            p = np.clip(predicted, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
            return np.asarray(-np.log(np.where(self.values > 0, p, 1 - p)))
        return np.asarray(np.abs((np.exp(predicted) if self.kind == "loss" else predicted) - self.values))


def problems(population: NestedPopulation, columns: FractionColumns) -> list[Problem]:
    """Return the targets that differ between the runs at a fraction."""
    places = columns.places
    found: dict[str, Vector] = {name: values[places] for name, values in population.targets.items()}
    found[DIVERGENCE] = _diverges(population, columns)
    made = []
    for target, values in found.items():
        known = np.isfinite(values)
        if known.any():
            chosen = np.flatnonzero(known)
            kind: Kind = "event" if target == DIVERGENCE else "number" if target == GAP else "loss"
            kind = "number" if kind == "loss" and not (values[known] > 0).all() else kind
            groups = {name: g[places[chosen]] for name, g in population.groups.items()}
            made.append(Problem(target, kind, values[chosen], columns.of_runs(chosen), groups))
    return made


def _diverges(population: NestedPopulation, columns: FractionColumns) -> Vector:
    """Return 1 for runs that diverge or have a spike within the next tenth of training, 0 for the others.

    NaN where too little was logged to say.
    """
    events = np.full(len(columns.places), np.nan)
    for i, (place, at) in enumerate(zip(columns.places, columns.at, strict=True)):
        step = int(population.runs[place].steps[at])
        end = step + NEXT_SHARE * population.last_steps[place]
        losses = population.losses[place]
        if step < population.diverged_at[place] <= end:
            events[i] = 1.0
        else:
            events[i] = spikes(losses.steps, losses.training, step, end)
    return events


def spikes(steps: Steps, losses: Vector, step: float, end: float) -> float:
    """Return whether the training loss rises by a tenth after a step, up to another: 1, 0, or NaN if it is not known.

    The mean of any ten consecutive logged losses after the step is compared with that of the last ten up to it; with
    fewer than ten rows on either side nothing is known. A loss that is not finite counts as a rise.
    """
    before, after = losses[steps <= step][-SPIKE_ROWS:], losses[(steps > step) & (steps <= end)]
    if len(before) < SPIKE_ROWS or len(after) < SPIKE_ROWS or not np.isfinite(before).all():
        return np.nan
    if not np.isfinite(after).all():
        return 1.0
    means = np.convolve(after, np.full(SPIKE_ROWS, 1 / SPIKE_ROWS), mode="valid")
    return float(means.max() > (1 + SPIKE_RISE) * before.mean())


def winsorised(values: Vector) -> Vector:
    """Return values with those far from the median brought nearer, so that a few of them do not decide a fit."""
    centre = np.median(values)
    spread = NORMAL * np.median(np.abs(values - centre))
    if not spread > 0:
        return values
    return np.asarray(np.clip(values, centre - MAX_SPREADS * spread, centre + MAX_SPREADS * spread))
