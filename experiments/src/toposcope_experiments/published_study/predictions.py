"""The published study's forecasters of the final loss, and the two that show what topology adds to them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import ToposcopeError, Vector
from toposcope.logs import final_training_loss
from toposcope.probes import Feature

FRACTIONS = (0.2, 0.3, 0.5)
PROTOCOLS = ("published", "exact")
MIN_CHECKPOINTS = 3  # fewest checkpoints a forecast is made from; also the window of `last`
SHARE = 0.6  # of the power law in a blend
BOUNDS = (100, 2, 20)  # largest a, b and c of a x^-b + c; the least are 0
MAX_EVALUATIONS = 10_000
FLOOR = 0.5  # nats; `tda_only` never goes below
DAMPING = 0.1

ROUNDING = 1e-6  # steps; a fraction of a whole number of steps may fall just short of it

NP_FEATURES = (
    Feature("published", "", "np_mean", "topology"),
    Feature("neural_persistence", "", "np_mean", "topology"),
)
SCHEMA = {"run": pl.String, "protocol": pl.String, "fraction": pl.Float64, "forecaster": pl.String}
SCHEMA |= {**dict.fromkeys(("prediction", "final", "error"), pl.Float64), "fallback": pl.Boolean}


class Forecast(NamedTuple):
    """A predicted final loss in nats, and whether its fit failed and the last loss seen stands in for it."""

    loss: float
    fallback: bool = False


def loss_only(steps: Vector, losses: Vector, last_step: float) -> Forecast:
    """Extrapolate the power law a x^-b + c with x = step + 1, as published (``paper_loss_only``).

    Least squares from (10, 0.1, last loss seen), bounds [0, 100], [0, 2], [0, 20], at most 10,000 evaluations. Where
    the fit failed the publication took the final loss itself, which no forecaster can know; here it is the last loss
    seen, and the forecast says so.
    """
    from scipy.optimize import least_squares

    _check(losses)
    x, seen = steps + 1.0, float(losses[-1])

    def law(p: Vector, x: Vector | float) -> Any:
        return p[0] * x ** -p[1] + p[2]

    low, high = np.zeros(3), np.array(BOUNDS)
    start = np.array([10, 0.1, seen])
    if not (low <= start).all() or not (start <= high).all():
        return Forecast(seen, fallback=True)
    # what SciPy's curve_fit does with bounds
    fit = least_squares(lambda p: law(p, x) - losses, start, bounds=(low, high), max_nfev=MAX_EVALUATIONS)
    return Forecast(float(law(fit.x, last_step + 1.0))) if fit.success else Forecast(seen, fallback=True)


def tda_only(losses: Vector, persistence: Vector, n_checkpoints: int) -> Forecast:
    """Lower the last loss seen by a tenth of the rate of mean neural persistence (``paper_tda_only``).

    ``max(0.5, losses[-1] - |rate (n_checkpoints - n) 0.1|)`` with ``rate = (NP[-1] - NP[0]) / (n - 1)``: it only ever
    predicts a fall, whichever way neural persistence moves.
    """
    _check(losses)
    n = len(losses)
    rate = (persistence[-1] - persistence[0]) / (n - 1)
    return Forecast(float(max(FLOOR, losses[-1] - abs(rate * (n_checkpoints - n) * DAMPING))))


def last(losses: Vector) -> Forecast:
    """Return the mean of the last window of 3 checkpoints (``last``)."""
    _check(losses)
    return Forecast(float(np.mean(losses[-MIN_CHECKPOINTS:])))


def blend(power_law: Forecast, other: float) -> Forecast:
    """Return 0.6 power law + 0.4 other: ``paper_combined`` and ``paper_combined_without_topology``."""
    return Forecast(SHARE * power_law.loss + (1 - SHARE) * other, power_law.fallback)


def forecasts(
    steps: Vector, losses: Vector, persistence: Vector | None, last_step: float, n_checkpoints: int
) -> dict[str, Forecast]:
    """Make every forecast there is from the checkpoints seen."""
    law = loss_only(steps, losses, last_step)
    found = {
        "last": last(losses),
        "paper_loss_only": law,
        "paper_combined_without_topology": blend(law, float(losses[-1])),
    }
    if persistence is not None and np.isfinite(persistence[[0, -1]]).all():
        topology = tda_only(losses, persistence, n_checkpoints)
        found |= {"paper_tda_only": topology, "paper_combined": blend(law, topology.loss)}
    return found


def predictions(trajectories: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Forecast the final loss of every complete run, twice.

    ``published``: from the batch losses at the first ``max(3, int(n f))`` checkpoints, to the batch loss of the last.
    ``exact``: from the reference target (validation or smoothed loss) at the checkpoints up to the fraction f of the
    steps, at least 3, to the final loss: the validation loss at the end, or the mean of the last 2% of logged steps.
    """
    complete = dict(runs.filter(status="complete").select("run", "last_step").iter_rows())
    rows: list[tuple[str, str, float, str, float, float, float, bool]] = []
    for trajectory in trajectories:
        if trajectory.run in complete and complete[trajectory.run] in (None, int(trajectory.steps[-1])):
            run_log = log.filter(run=trajectory.run)
            for protocol in PROTOCOLS:
                for fraction, name, found, final in _of_run(trajectory, run_log, protocol):
                    error = abs(found.loss - final)
                    rows.append((trajectory.run, protocol, fraction, name, found.loss, final, error, found.fallback))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def final_loss(trajectory: Trajectory, log: pl.DataFrame) -> float:
    """Return the final loss in nats; NaN if none is known."""
    if "validation_loss" in trajectory.targets:
        return float(trajectory.targets["validation_loss"][-1])
    rows = log.sort("step").drop_nulls("loss").filter(pl.col("loss").is_finite())
    return final_training_loss(*(rows.get_column(c).to_numpy() for c in ("step", "loss")))[0] if len(rows) else np.nan


def _of_run(trajectory: Trajectory, log: pl.DataFrame, protocol: str) -> Iterator[tuple[float, str, Forecast, float]]:
    """Forecast one run under one protocol: fraction, forecaster, forecast, final loss."""
    published = protocol == "published"
    if not trajectory.targets or (published and "batch_loss" not in trajectory.targets):
        return
    # the published protocol puts the batch loss first; exact forecasts need another where there is one
    trusted = next((name for name in trajectory.targets if name != "batch_loss"), "batch_loss")
    losses = trajectory.targets["batch_loss" if published else trusted]
    final = float(losses[-1]) if published else final_loss(trajectory, log)
    known = np.isfinite(losses)
    if not np.isfinite(final) or int(known.sum()) <= MIN_CHECKPOINTS:
        return
    steps, losses = trajectory.steps[known].astype(np.float64), losses[known]
    # as published where that was released; measured first where exact values are asked for
    names = [name for name in (NP_FEATURES if published else NP_FEATURES[::-1]) if name in trajectory.features]
    persistence = trajectory.features[names[0]][known] if names else None
    for fraction in FRACTIONS:
        reached = int((steps <= fraction * trajectory.steps[-1] + ROUNDING).sum())
        n = max(MIN_CHECKPOINTS, int(len(steps) * fraction) if published else reached)
        seen = None if persistence is None else persistence[:n]
        made = forecasts(steps[:n], losses[:n], seen, float(trajectory.steps[-1]), len(steps))
        for name, found in made.items():
            yield fraction, name, found, final


def _check(losses: Vector) -> None:
    if len(losses) < MIN_CHECKPOINTS:
        least = f"at least {MIN_CHECKPOINTS} checkpoints with a loss"
        raise ToposcopeError(f"a forecast needs {least}; there are {len(losses)}")
    if not np.isfinite(losses).all():
        raise ToposcopeError("a forecast needs finite losses; leave out the checkpoints that have none")
