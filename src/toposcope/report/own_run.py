"""What the page of one run says first: whether it is healthy, where its loss ends, what doctor and monitor say.

A study of one run is somebody's own run; of several runs, or with published numbers, it asks what topology adds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from toposcope.analysis.association_verdict import MIN_PERFECT_CORRELATION
from toposcope.analysis.health import Health, health
from toposcope.analysis.health.check import EARLY
from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecast_report import ForecastReport, forecast, loss_chart
from toposcope.forecasting.headline import kind_of
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import UnknownEndError
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report import first_screen
from toposcope.report.association_tables import measured, primary
from toposcope.report.charts.step_taken_out import step_taken_out
from toposcope.report.document import Chip, FirstScreen, Opening, Picture, Terms
from toposcope.report.headline import TARGETS, uncapitalised
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import study_verdict
from toposcope.wording import COVERAGE, capitalised, counted, loss_words, sentence

VALIDATION = "validation loss"


@dataclass(frozen=True, eq=False)
class OwnRun:
    """The one run of a study."""

    name: str
    log: Run | None
    forecast: ForecastReport | None
    refusal: str  # why there is no loss, or no forecast

    @cached_property
    def health(self) -> Health:
        """Whether it is healthy; by its log alone where there is no forecast, which knows the plan."""
        if self.log is None:
            return Health(EARLY)
        return self.forecast.health if self.forecast is not None else health(self.log)


def own_run(data: StudyData) -> OwnRun | None:
    """Return the run of a study that has one; None for several, or one whose published numbers are examined."""
    return data.once("own run", lambda: _read(data)) if data.is_own_run else None


def _read(data: StudyData) -> OwnRun:
    name, log = str(data.runs.item(0, "run")), None
    try:
        log = data.read_log()
        return OwnRun(name, log, forecast(log), "")
    except UnknownEndError as error:
        return OwnRun(name, log, None, error.on_page(data.directory or name))
    except ToposcopeError as error:
        return OwnRun(name, log, None, f"No forecast: {str(error).removeprefix(f'{name}: ')}")


def top_charts(data: StudyData) -> list[Chart]:
    """Draw what stands at the top of the page."""
    return [chart for chart in (run_chart(data), step_taken_out(data)) if chart is not None]


def opening(data: StudyData, pictures: Mapping[str, Picture]) -> Opening:
    """Return the first screen: of one run about the run, then about topology; else about topology."""
    run, screen = own_run(data), first_screen.first_screen(data)
    topology = Opening(screen, pictures.get("step-taken-out"), first_screen.headline_table(data))
    if run is None:
        return topology
    found, then = study_verdict(data), None
    said = f"Not judged: {found.reason}. {found.details}"
    if len(found.rows):
        said, then = screen.first, replace(topology, answer=_topology_screen(data, screen))
    return Opening(run_screen(data, run), pictures.get("run"), facts=run_facts(data, run, said), then=then)


def run_screen(data: StudyData, run: OwnRun) -> FirstScreen:
    """Return the answer about a run: health and final loss, how far it is, and what watched it."""
    chips = [
        first_screen.runs_chip(data),
        *_alerts_chip(data),
        first_screen.doctor_chip(data),
        first_screen.failures_chip(data),
    ]
    return FirstScreen(_first(data, run), " ".join(map(sentence, _second(run))), tuple(chips))


def _first(data: StudyData, run: OwnRun) -> str:
    if run.log is None:
        return f"No loss of {run.name} is known; {uncapitalised(_checkpoints(data))}."
    said = f"{run.health.words}."
    return said if run.log.diverged is not None else f"{said} {_end(run, run.log)}."


def _end(run: OwnRun, log: Run) -> str:
    report, which = run.forecast, f"{kind_of(log)} loss"
    if report is None or report.default is None:
        # of validation, as on the live page, however few there are
        loss, which = (log.final_loss()[0], which) if log.validation is None else (log.validation[1][-1], VALIDATION)
        return f"At {loss_words(loss)} now, {which}" if report is None else f"Ended at {loss_words(loss)}, {which}"
    final, low, high = (loss_words(value, report.digits) for value in (report.loss, *report.interval))
    return f"Ends at {final} ({low} to {high}), {which}"


def _second(run: OwnRun) -> Iterator[str]:
    report, log = run.forecast, run.log
    if log is None:
        yield "To know its loss, put its training log next to the checkpoints, or declare a text to measure the loss on"
        return
    yield from filter(None, (run.health.reason, run.health.detail))
    if log.diverged is not None:
        return
    if report is None:
        yield run.refusal
    elif report.default is None:
        yield f"Complete at step {log.last_seen:,}"
    else:
        seen, last = log.last_seen, report.schedule.last_step
        yield f"{seen / last:.0%} of {last:,} steps seen; in brackets the {COVERAGE:.0%} interval of the final loss"


def _alerts_chip(data: StudyData) -> Iterator[Chip]:
    n = len(data.alerts)
    if n or (data.runs.get_column("kind") == "live").any():
        yield Chip(f"{n:,}", "alert" if n == 1 else "alerts", "bad" if n else "good")


def run_facts(data: StudyData, run: OwnRun, topology: str) -> Terms:
    """Return what an owner asks of a run, with the answers; the last is what its topology says."""
    return Terms(tuple((name, sentence(text)) for name, text in _facts(data, run, topology)))


def _facts(data: StudyData, run: OwnRun, topology: str) -> Iterator[tuple[str, str]]:
    if run.log is not None:
        yield "Loss", _loss_words(run.log)
    if run.forecast is not None and "plan" in (inputs := run.forecast.inputs()):
        yield "Plan", inputs["plan"]
    if run.log is not None:
        yield "Checked", ". ".join(capitalised(check.text) for check in run.health.checks)
    yield "Checkpoints", _checkpoints(data)
    yield "Topology", topology


def _loss_words(log: Run) -> str:
    (step, best), now = log.best, log.final_loss()[0]
    unit, per_token = ("", ", nats per token") if log.unit == "nats" else (f" {log.unit}", "")
    words = f"{kind_of(log)} loss {loss_words(now)}{unit} at step {log.steps[-1]:,}{per_token}"
    which = VALIDATION if log.validation is not None else "loss"
    return f"{words}; lowest {which} {loss_words(best)} at step {step:,}"


def _checkpoints(data: StudyData) -> str:
    n, faults = int(data.runs.get_column("n_checkpoints").sum()), len(data.findings.filter(severity="fault"))
    if faults:
        return f"The doctor finds {counted(faults, 'fault')} in {counted(n, 'checkpoint')}"
    if data.examined:
        return f"The doctor finds no fault in {counted(n, 'checkpoint')}"
    return f"{counted(n, 'measured step')}; no saved checkpoint was examined"


def _topology_screen(data: StudyData, screen: FirstScreen) -> FirstScreen:
    """Say why nothing can be separated where the loss of a run only falls; chips about the run stand above."""
    rows = measured(primary(data)).filter(group=NETWORK, kind=TOPOLOGY)
    screen = replace(screen, chips=tuple(first_screen.topology_chips(study_verdict(data))))
    rho = rows.get_column("rho_step").to_numpy()
    if not len(rows) or not (np.abs(rho) > MIN_PERFECT_CORRELATION).all():
        return screen
    why = (
        f"Your {TARGETS[rows.item(0, 'target')]} {'fell' if rho[0] < 0 else 'rose'} at every checkpoint, so step and "
        "loss carry the same order and nothing can be separated. Save more often, or add a second run."
    )
    return replace(screen, second=why)


def run_chart(data: StudyData) -> Chart | None:
    """Draw the loss of the one run of a study, and the forecast of its end."""
    run = own_run(data)
    if run is None or run.log is None:
        return None
    is_predicted = run.forecast is not None and run.forecast.default is not None
    title = f"{kind_of(run.log).capitalize()} loss" + (", and where it ends" if is_predicted else "")
    chart = loss_chart(run.log, run.health) if run.forecast is None else run.forecast.plot()
    return replace(chart, name="run", title=title)
