"""Training efficiency, the loss gained per step and per token, and the speed of neural persistence next to it."""

from dataclasses import replace

import numpy as np

from toposcope.analysis.trajectory import SeriesByName, Trajectory
from toposcope.probes.feature import TOPOLOGY, Feature
from toposcope.typing import Indices, Vector

PER_STEP, PER_TOKEN = "loss_per_step", "loss_per_token"
NP_MEAN = Feature("neural_persistence", "", "np_mean", TOPOLOGY)
NP_SPEED = NP_MEAN.with_statistic("np_mean.speed")


def efficiency(trajectory: Trajectory) -> SeriesByName:
    """Return by how much the first target fell since the checkpoint before, per step and per token.

    A token costs a model the same compute all along, so that the loss gained per token is that per unit of compute.
    It is left out where it is a multiple of that per step: where tokens are unknown, or each step has as many.
    """
    loss = next(iter(trajectory.targets.values()), None)
    if loss is None:
        return {}
    found = {PER_STEP: _rate(-loss, trajectory.steps)}
    batch = _rate(trajectory.tokens, trajectory.steps)[1:]
    if np.isfinite(batch).all() and batch.max(initial=0.0) > batch.min(initial=np.inf) * (1 + 1e-9):
        found[PER_TOKEN] = _rate(-loss, trajectory.tokens)
    return found


def paces(trajectory: Trajectory) -> Trajectory:
    """Return the run with its efficiency for targets, and the speed of neural persistence for its one feature."""
    values = trajectory.features.get(NP_MEAN)
    speed = {} if values is None else {NP_SPEED: np.abs(_rate(values, trajectory.steps))}
    targets = efficiency(trajectory) if speed else {}
    return replace(trajectory, features=speed, targets=targets, groups={}, layers={}, twins={}, noise={})


def _rate(values: Vector, progress: Vector | Indices) -> Vector:
    """Return the change of known values since the one before, per unit of progress; NaN at the first."""
    rates, known = np.full(len(values), np.nan), np.flatnonzero(np.isfinite(values) & np.isfinite(progress))
    change, units = np.diff(values[known]), np.diff(progress[known]).astype(np.float64)
    rates[known[1:]] = np.divide(change, units, out=np.full(len(units), np.nan), where=units > 0)
    return rates
