"""The first line of a forecast: the health of the run, which loss it is, where that ends, and how sure that is."""

import numpy as np

from toposcope.analysis.health import Health
from toposcope.analysis.health.evaluations import evaluation_noise
from toposcope.forecasting.forecaster import Forecast
from toposcope.logs import Run
from toposcope.logs.run import FINAL_SHARE
from toposcope.logs.schedules.schedule import Schedule
from toposcope.wording import COVERAGE, capitalised

MIN_EVALUATIONS = 6  # from which on their noise is told; it is that of one


def headline(
    run: Run, health: Health, schedule: Schedule, default: Forecast | None, digits: int, borrowed: str = ""
) -> str:
    """Return the first line: the health of the run, and where its loss ends."""
    diverged = run.diverged is not None
    end = "It has no final loss" if diverged else end_of_loss(run, schedule, default, digits, borrowed)
    return f"{health_sentence(health)} {end}."


def end_of_loss(run: Run, schedule: Schedule, default: Forecast | None, digits: int, borrowed: str = "") -> str:
    """Return where the loss ends, without a full stop; of a run without a default forecast, where it ended."""
    last_step, borrowed = schedule.last_step, f" ({borrowed})" if borrowed else ""
    if default is None:
        of = f" of {last_step:,}{borrowed}" if last_step != run.last_seen else borrowed
        return f"The run is complete, at {_at(run, run.last_seen)}{of}: {_ended(run, digits)}"
    ends = end_words(f"{kind_of(run)} loss", default.loss, default.low, default.high, run.unit)
    return f"{ends} at {_at(run, last_step)}{borrowed}"


def end_words(target: str, loss: float, low: float, high: float, unit: str) -> str:
    """Return where a loss ends, with its interval: ``Training loss ends at 2.592 (90%: 2.582 to 2.603)``."""
    digits, unit = decimals(low, high), "" if unit == "nats" else f" {unit}"
    interval = f"({COVERAGE:.0%}: {low:.{digits}f} to {high:.{digits}f})"
    return f"{capitalised(target)} ends at {loss:.{digits}f}{unit} {interval}"


def decimals(low: float, high: float) -> int:
    """Return with how many decimals losses are written: two of them within the interval."""
    return int(np.clip(1 - np.floor(np.log10((high - low) / 2)), 2, 6)) if high > low else 4


def standing(run: Run, health: Health) -> str:
    """Return the first line of a run whose end cannot be predicted: its health, and where its loss is now."""
    now = f"{capitalised(kind_of(run))} loss is {run.final_loss()[0]:.4g}{_unit(run)} at {_at(run, int(run.steps[-1]))}"
    return f"{health_sentence(health)} {now}. Where it ends cannot be predicted."


def health_sentence(health: Health) -> str:
    """Return the word on a run, with the reason where there is one."""
    if not health.reason:
        return f"{health.words}."
    return f"{health.words}: {health.reason[0].lower()}{health.reason[1:]}"


def _at(run: Run, number: int) -> str:
    """Return a place on the x axis: ``step 1,000``; of rows that no step is known of, what would say it."""
    hint = " (no steps are logged: --every N says how many there are per row)" if run.axis == "row" else ""
    return f"{run.axis} {number:,}{hint}"


def _ended(run: Run, digits: int) -> str:
    """Return where the losses of a complete run ended: that of validation first, even where there are few."""
    loss, error = run.final_loss()
    spread = f" ± {error:.{digits}f}" if np.isfinite(error) and not run.is_validation else ""
    training = (
        f"training loss ended at {loss:.{digits}f}{spread}{_unit(run)}, over the last {FINAL_SHARE:.0%} of its rows"
    )
    if run.validation is None:
        return training
    steps, losses = run.validation
    noise = evaluation_noise(losses) if len(losses) >= MIN_EVALUATIONS else 0.0
    spread = f" ± {noise:.{digits}f}" if noise else ""
    last = f"{losses[-1]:.{digits}f}{spread}{_unit(run)}, that of the last evaluation, at step {steps[-1]:,}"
    return f"validation loss ended at {last}" + ("" if run.is_validation else f"; {training}")


def kind_of(run: Run) -> str:
    """Return which loss a run is forecast by: training or validation."""
    return "validation" if run.is_validation else "training"


def _unit(run: Run) -> str:
    return "" if run.unit == "nats" else f" {run.unit}"
