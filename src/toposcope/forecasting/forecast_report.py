"""A run's forecast: from a log and what is planned to a report of every forecaster, with its remarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from toposcope.analysis.health import Health, health
from toposcope.analysis.health.check import SPIKED
from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown
from toposcope.forecasting.forecaster import Forecast, LoggedRun, fraction_seen
from toposcope.forecasting.forecaster_set import DEFAULT, ForecastSet, run_forecasters
from toposcope.forecasting.headline import decimals, end_of_loss, headline
from toposcope.forecasting.intervals import band
from toposcope.forecasting.siblings import (
    CompleteRuns,
    borrowed_parts,
    siblings_among,
    with_events,
    with_family,
    without_itself,
)
from toposcope.forecasting.stages import Stage, check_falls
from toposcope.forecasting.stored_cooldowns import read_cool_downs
from toposcope.logs import Logs, Run, read_log, read_logs
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope.logs.table import ByStep
from toposcope.wording import counted, short

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart


@dataclass(frozen=True, eq=False)
class ForecastReport:
    """The forecast of a run."""

    log: Run  # what was seen, with the family that it is taken to belong to
    schedule: Schedule
    siblings: tuple[LoggedRun, ...]  # complete runs that were borrowed from; the run itself is none of them
    # none if the run is complete, so that its final loss is known, or diverged, so that it has none
    results: ForecastSet | None
    # warnings and assumptions, each once: of the default forecast, the schedule, the log and the siblings
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<ForecastReport of {self.log.name}: {self.headline()}>"

    def plot(self) -> "Chart":
        """Draw the loss seen, the predicted loss with its interval, and where each forecaster ends."""
        from toposcope.charts.forecast import binned_medians

        log, schedule = self.log, self.schedule
        ends = None
        if self.results is not None:
            final = {name: each.loss for name, each in self.results.forecasts.items() if name != DEFAULT}
            ends = pl.DataFrame({"forecaster": list(final), "loss": list(final.values())})
        smooth = {
            run: binned_medians(run.log.steps.astype(np.float64), run.log.loss)
            for run in self.siblings
            if run.log.unit == log.unit
        }

        def distance(run: LoggedRun) -> tuple[bool, float]:
            """Return how far a sibling is from the run where this ends, at an equal share of the steps."""
            there = np.interp(log.steps[-1] / schedule.last_step * run.schedule.last_step, *smooth[run])
            return run.log.family != log.family, abs(float(np.log(there / log.final_loss()[0])))

        siblings = [pl.DataFrame(schema={"run": pl.String, "step": pl.Float64, "loss": pl.Float64})]
        for run in sorted(smooth, key=distance)[:12]:
            steps, losses = smooth[run]
            stretched = steps * (schedule.last_step / run.schedule.last_step)
            siblings.append(pl.DataFrame({"run": run.log.name, "step": stretched, "loss": losses}))
        return loss_chart(
            log,
            self.health,
            self._title(),
            last_step=schedule.last_step,
            forecaster=self.chosen,
            curve=self.curve,
            ends=ends,
            siblings=pl.concat(siblings),
            rates=None if schedule.origin == "unknown" else _rates(log, schedule),
        )

    @property
    def chosen(self) -> str:
        """Name of the default forecaster; empty if the run is complete or diverged."""
        return "" if self.results is None else self.results.chosen

    @property
    def default(self) -> Forecast | None:
        """The default forecast; None if the run is complete or diverged."""
        return None if self.results is None else self.results.forecasts[self.chosen]

    @property
    def curve(self) -> pl.DataFrame | None:
        """``step, loss, low, high`` of the default forecast, from the last step seen; None if there is none."""
        default = self.default
        if default is None:
            return None
        low, high = band(default)
        return pl.DataFrame({"step": default.steps, "loss": default.curve, "low": low, "high": high})

    @property
    def stage(self) -> Stage | None:
        """The new stage of training that the forecast is made from; None if there is none."""
        return None if self.results is None else self.results.stage

    @property
    def loss(self) -> float:
        """The final loss: that of the default forecast, or of the complete run; NaN if the run diverged."""
        if self.log.diverged is not None:
            return float("nan")
        return self.log.final_loss()[0] if self.default is None else self.default.loss

    @property
    def interval(self) -> tuple[float, float]:
        """The 90% interval of the final loss; NaN if the run is complete or diverged."""
        return (np.nan, np.nan) if self.default is None else (self.default.low, self.default.high)

    @property
    def digits(self) -> int:
        """Decimals that losses are written with: two of them within the interval."""
        return decimals(*self.interval)

    @property
    def borrowed(self) -> str:
        """What was taken from siblings, a clause; empty if nothing was."""
        return borrowed_parts(self.schedule, self.default, len(self.siblings))

    @cached_property
    def health(self) -> Health:
        """Whether the run is healthy, by its log and the plan that is forecast."""
        run = planned_run(self.log, self.schedule.last_step, is_over=self.results is None)
        return health(run, plan=self.schedule.plan)

    def _title(self) -> str:
        if self.log.diverged is not None:
            return f"Diverged at step {self.log.diverged.step:,}"
        return end_of_loss(self.log, self.schedule, self.default, self.digits)

    def headline(self) -> str:
        """Return in a line whether the run is healthy, where it ends and how sure that is; or that it diverged."""
        return headline(self.log, self.health, self.schedule, self.default, self.digits, self.borrowed)

    def inputs(self) -> dict[str, str]:
        """Return sentences on what was ``read``, the ``plan`` and the ``siblings``."""
        log, schedule = self.log, self.schedule
        size = f", {short(log.parameters)} parameters" if np.isfinite(log.parameters) else ""
        sentences = {
            "read": f"{counted(len(log.steps), 'loss', 'losses')} from {log.target!r} in {log.unit}, steps "
            f"{log.steps[0]:,} to {log.steps[-1]:,}{size}"
        }
        if log.diverged is None:
            seen = min(100 * log.last_seen // schedule.last_step, 100)  # as `check` says it
            sentences["read"] += f"; {log.final_loss()[0]:.{self.digits}f} now"
            sentences["plan"] = f"{schedule.last_step:,} steps, {seen}% seen; {_learning_rate(log, schedule)}"
        if self.siblings:
            relatives = sum(run.log.family == log.family for run in self.siblings)
            family = f" {log.family}" if log.family else ""
            n_runs = counted(len(self.siblings), "complete run")
            sentences["siblings"] = f"{n_runs}, {relatives} of the log's family{family}"
        if self.results is not None and self.results.measured:
            sentences["cool-down"] = self.results.measured
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dictionaries; what is not finite stays so."""
        log, schedule, results, table = self.log, self.schedule, self.results, self.curve
        last = int(log.steps[-1])
        diverged = log.diverged is not None
        final, error = (np.nan, np.nan) if diverged else log.final_loss()
        best_step, best_loss = log.best
        report: dict[str, Any] = {
            "log": {
                "name": log.name, "unit": log.unit, "target": log.target, "family": log.family, "n": len(log.steps),
                "first_step": int(log.steps[0]), "last_step": last, "loss": final, "parameters": log.parameters,
                "validation": log.is_validation, "last_seen": log.last_seen, "axis": log.axis,
                "evidence": log.evidence,
            },
            "health": self.health.to_dict(),
            "diverged": log.diverged._asdict() if log.diverged is not None else None,
            "best_step": best_step,
            "best_loss": best_loss,
            "schedule": None if diverged else {
                "last_step": schedule.last_step, "peak": schedule.peak, "warm_up": schedule.warm_up,
                "final": float(schedule.rates[-1]), "decay_seen": schedule.decay_seen(log.last_seen),
            },
            "new_stage": None if self.stage is None else self.stage.step,
            "fraction_seen": None if diverged else fraction_seen(log, schedule),
            "complete": results is None and not diverged,
            "final_loss": None if results is not None or diverged else {"loss": final, "standard_error": error},
            "siblings": [run.log.name for run in self.siblings],
            "cool_down": "" if results is None else results.measured,
            "remarks": self.remarks,
            "default": None,
            "forecasts": {},
            "refused": {},
            "curve": None,
        }  # fmt: skip
        if results is not None and table is not None:
            report |= {
                "default": self.chosen,
                "forecasts": {
                    name: {
                        "loss": each.loss, "low": each.low, "high": each.high, "remarks": each.remarks,
                        "diagnostics": each.diagnostics, "siblings_asked": len(each.errors),
                    }
                    for name, each in results.forecasts.items()
                },
                "refused": results.refused,
                "curve": table.rename({"step": "steps"}).to_dict(as_series=False),
            }  # fmt: skip
        return report


def loss_chart(log: Run, judged: Health, title: str = "", last_step: int | None = None, **predicted: Any) -> "Chart":
    """Draw what was logged of a run and what was predicted, an argument of `forecast_chart` each."""
    from toposcope.charts.forecast import forecast_chart

    kinds = [ByStep(log.steps, log.loss), *([log.validation] if log.validation and not log.is_validation else [])]
    seen, *validation = (pl.DataFrame({"step": steps, "loss": losses}) for steps, losses in kinds)
    spikes = SPIKED in (judged.word, judged.kept)  # of which it speaks
    last = last_step or log.last_seen
    return forecast_chart(seen, title, last_step=last, unit=log.unit, validation=validation, spikes=spikes, **predicted)


def forecast(
    log: Run | str | Path,
    *,
    siblings: CompleteRuns | str | Path | None = None,
    schedule: str = "",
    last_step: int | None = None,
    run: str | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    measured: Sequence[CoolDown] | str | Path = (),
) -> ForecastReport:
    """Predict a run's final loss, with an interval.

    Parameters
    ----------
    log : Run, str or Path
        What was logged so far; a path is read with `toposcope.logs.read_log`.
    siblings : str, Path or CompleteRuns, optional
        Complete logs of similar runs, or those that `read_siblings` returned. With them the forecast is closer, and
        its interval narrower. If the run itself is among them it is left out.
    schedule : str, optional
        Of the learning rate, for example ``cosine:steps=20000``; by default that of siblings whose rate agrees with the
        log, else the shape that the log follows.
    last_step : int, optional
        Last step planned, if neither the log, the schedule nor the siblings have it.
    run : str, optional
        Name of the run, where the log holds several.
    columns : mapping, optional
        Names of the log's columns by what they are, in place of guesses: ``{"loss": "ce"}``.
    unit : str, optional
        Of the losses; by default the name of the column decides.
    measured : sequence of CoolDown, str or Path
        What merged checkpoints predict of cool-downs from now on: the answers of `toposcope.cooldown`, or the
        file that ``toposcope cooldown --json`` wrote. Where a decay is planned near, its gain is used in place of a
        prior; the inputs of the report say so, or why not.

    Returns
    -------
    ForecastReport

    Raises
    ------
    ToposcopeError
        If the log cannot be read, the schedule is invalid, the last step is unknown, or every forecaster refuses.

    Examples
    --------
    >>> import numpy as np
    >>> from toposcope.logs import Run
    >>> steps = np.arange(20, 5001, 20)
    >>> rate = np.full(len(steps), 3e-4)
    >>> forecast(Run("now", steps, 2 + 3 * steps**-0.3, rate), schedule="constant:steps=10000")
    <ForecastReport of now: Healthy. Training loss ends at 2.190 (90%: 2.103 to 2.226) at step 10,000.>
    """
    if isinstance(measured, str | Path):
        measured = read_cool_downs(measured)
    if not isinstance(log, Run):
        log = with_events(read_log(log, run=run, columns=columns, unit=unit), Path(log))
    if siblings is not None and not isinstance(siblings, CompleteRuns):
        siblings = read_siblings(siblings, log, columns=columns, unit=unit)
    runs: tuple[LoggedRun, ...] = ()
    remarks: list[str] = []
    if siblings is not None:
        runs, sibling_remarks = without_itself(log, siblings)
        log, family_remarks = with_family(log, runs)
        remarks = [*sibling_remarks, *family_remarks]
    if log.diverged is not None:
        plan = planned(log, last_step=max(log.last_seen, last_step or log.last_step or 0))
        return ForecastReport(log, plan, (), None, log.remarks)
    if not log.is_complete:
        check_falls(log)  # before its end is asked for
    ended = log.finished and last_step is None and not schedule
    plan = planned(log, schedule, log.last_step or log.last_seen if ended else last_step, [each.log for each in runs])
    if ended or planned_run(log, plan.last_step).is_complete:
        return ForecastReport(log, plan, runs, None, tuple(dict.fromkeys((*log.remarks, *remarks))))
    results = run_forecasters(log, plan, runs, measured=measured)
    first = [] if results.stage is None else [str(results.stage)]
    if results.chosen == "last" and "power_law" in results.refused:
        first.append(f"no law could be fitted: {results.refused['power_law']}")
    default = results.forecasts[results.chosen].remarks
    return ForecastReport(
        log, plan, runs, results, tuple(dict.fromkeys((*first, *default, *plan.remarks, *log.remarks, *remarks)))
    )


def read_siblings(
    path: str | Path,
    log: Run,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    pattern: str = "",
    every: int = 0,
) -> CompleteRuns:
    """Read the complete runs that a forecast of a log may borrow from, their losses of the kind that the log's are."""
    try:
        logs = read_logs(path, columns=columns, pattern=pattern, every=every)
    except ToposcopeError:
        if not columns:
            raise
        # the columns named are those of the log; siblings may come from another tool
        logs = read_logs(path, pattern=pattern, every=every)
    others = [one for one in logs.logs if one.is_validation != log.is_validation]
    if any(one.table is not None and log.target in one.table.further_targets for one in others):
        again = read_logs(path, columns={**(columns or {}), "loss": log.target}, pattern=pattern, every=every)
        alike = {one.name: one for one in again.logs}
        logs = Logs(tuple(alike.get(one.name, one) for one in logs.logs), logs.remarks)
    return siblings_among(log, logs, unit)


def planned_run(log: Run, last_step: int, *, is_over: bool = False) -> Run:
    """Return a run with the end that a forecast plans for it; of one that goes beyond its log, that is no end."""
    return replace(log, last_step=last_step, finished=log.finished and is_over)


def _learning_rate(log: Run, schedule: Schedule) -> str:
    end = round(float(schedule.rates[-1] / schedule.peak), 5)  # cosines leave rests such as 3.58e-13%
    if schedule.origin == "unknown":
        return "learning rate unknown, as none was logged"
    if schedule.is_held:
        return "learning rate constant"
    # without a rate in log or plan the peak is 1 and means nothing
    peak = "" if schedule.peak == 1 else f", {schedule.peak:.3g},"
    return (
        f"learning rate at its peak{peak} at step {schedule.warm_up:,}, {100 * end:.3g}% of that at the end, "
        f"{schedule.decay_seen(log.last_seen):.0%} of its decay seen"
    )


def _rates(log: Run, schedule: Schedule) -> pl.DataFrame:
    """Return the learning rate, warm-up left out; the last step seen belongs to what is past and what is planned."""
    last = int(log.steps[-1])
    steps = np.linspace(schedule.warm_up, schedule.last_step, 300).round().astype(np.int64)
    steps = np.unique(np.append(steps, np.clip(last, schedule.warm_up, schedule.last_step)))
    frame = pl.DataFrame({"step": steps, "rate": schedule.rates[steps] / schedule.peak})
    past, planned = frame.filter(pl.col("step") <= last), frame.filter(pl.col("step") >= last)
    return pl.concat([past.with_columns(planned=False), planned.with_columns(planned=True)])
