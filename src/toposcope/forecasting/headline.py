"""The first line of a forecast: which loss, where it ends, how sure that is, and whether the run is healthy."""

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import Forecast, RefusedError
from toposcope.forecasting.held_out import LEVEL
from toposcope.forecasting.intervals import is_learning, risen
from toposcope.forecasting.stages import Stage
from toposcope.logs import Run
from toposcope.logs.anomalies import ROSE, spike_rows
from toposcope.logs.run import FINAL_SHARE
from toposcope.logs.schedules.schedule import Schedule
from toposcope.logs.tuning import MIN_TREND_ROWS
from toposcope.wording import capitalised, counted


def headline(
    log: Run, schedule: Schedule, default: Forecast | None, stage: Stage | None, digits: int, borrowed: str = ""
) -> str:
    """Return the first line; each kind of run has its own. A run without a default forecast is complete or diverged."""
    last_step = schedule.last_step
    if log.diverged is not None:
        return f"{capitalised(str(log.diverged))}. It has no final loss."
    health = health_of(log, stage)
    borrowed = f" ({borrowed})" if borrowed else ""
    if default is None:
        of = f" of {last_step:,}{borrowed}" if last_step != log.last_seen else borrowed
        return (
            f"{_best(log)}The run is complete, at step {log.last_seen:,}{of}: {_ended(log, digits)}; it was {health}."
        )
    low, high = (f"{end:.{digits}f}" for end in (default.low, default.high))
    end = ", an estimated end" if schedule.end == "learning rate" else ""
    return (
        f"{_best(log)}{capitalised(kind_of(log))} loss ends at {default.loss:.{digits}f}{_unit(log)} "
        f"({LEVEL:.0%}: {low} to {high}) at step {last_step:,}{end}{borrowed}; the run is {health}."
    )


def _ended(log: Run, digits: int) -> str:
    """Return where the losses of a complete run ended: that of validation first, even where there are few."""
    loss, error = log.final_loss()
    spread = f" ± {error:.{digits}f}" if np.isfinite(error) and not log.is_validation else ""
    training = (
        f"training loss ended at {loss:.{digits}f}{spread}{_unit(log)}, over the last {FINAL_SHARE:.0%} of its rows"
    )
    if log.validation is None:
        return training
    steps, losses = log.validation
    last = f"{losses[-1]:.{digits}f}{_unit(log)}, that of the last evaluation, at step {steps[-1]:,}"
    return f"validation loss ended at {last}" + ("" if log.is_validation else f"; {training}")


def standing(log: Run, error: ToposcopeError) -> str:
    """Return the first line of a run whose end cannot be predicted: where its loss is now, and its health.

    Of a loss that no law describes, such as that of a policy, falling and rising say nothing about health.
    """
    now = f"{capitalised(kind_of(log))} loss is {log.final_loss()[0]:.4g}{_unit(log)} at step {log.steps[-1]:,}"
    if not isinstance(error, RefusedError):
        now = f"{_best(log)}{now}; the run is {health_of(log)}"
    return f"{now}. Where it ends cannot be predicted."


def health_of(log: Run, stage: Stage | None = None) -> str:
    """Return what follows "the run is": healthy or not, as its losses show."""
    if stage is not None and stage.jump > 0:
        # a jump to a new stage explains why a loss rose
        return f"in a {stage.brief}: the loss rose by {np.expm1(stage.jump):.0%} there, which no learning rate explains"
    if stage is None:
        rose = [remark for remark in log.remarks if remark.startswith(ROSE)]
        if log.overfits:
            return "not healthy: it overfits"
        if rise := risen(log):
            return f"not healthy: the loss has risen from {rise[0]:.4g} to {rise[1]:.4g}"
        if rose:
            return f"not healthy: {rose[0]}"
        if not is_learning(log):
            return "not learning: its loss is constant"
        if (n := _n_losses(log)) < MIN_TREND_ROWS:
            return f"too short to be judged: {counted(n, 'loss', 'losses')} of the {MIN_TREND_ROWS} that it takes"
    spikes = len(spike_rows(log.loss))
    healthy = f"healthy but for {counted(spikes, 'spike')} of the loss" if spikes else "healthy"
    return healthy if stage is None else f"{healthy}, in a {stage.brief}"


def _n_losses(log: Run) -> int:
    """Return how many losses were logged, of training or of validation, whichever is more often."""
    columns = () if log.table is None else (log.table.values[name] for name in ("loss", "validation_loss"))
    return max(len(log.loss), *(int(np.isfinite(column).sum()) for column in columns), 0)


def kind_of(log: Run) -> str:
    """Return which loss a log is of: training or validation."""
    return "validation" if log.is_validation else "training"


def _best(log: Run) -> str:
    """Return a sentence on the best validation loss where it has risen since; else nothing."""
    if log.validation is None or not log.overfits:
        return ""
    (step, best), (steps, losses) = log.best, log.validation
    return (
        f"Past its best: the validation loss was lowest, {best:.4g}, at step {step:,} and has risen since, to "
        f"{losses[-1]:.4g} at step {steps[-1]:,}. "
    )


def _unit(log: Run) -> str:
    return "" if log.unit == "nats" else f" {log.unit}"
