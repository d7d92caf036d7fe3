"""``toposcope forecast``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli import options
from toposcope.cli.output import print_json, print_lines, print_notes, print_report, print_table, write_out
from toposcope.errors import ToposcopeError
from toposcope.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from toposcope.forecasting.cooldown import CoolDown
    from toposcope.forecasting.forecast_report import ForecastReport
    from toposcope.forecasting.siblings import CompleteRuns


@click.command()
@click.argument("log", type=options.EXISTING)
@click.option("--siblings", type=options.EXISTING, help="Folder or table of complete logs of similar runs.")
@click.option(
    "--schedule",
    default="",
    metavar="TEXT",
    help="Learning-rate schedule, such as cosine:steps=20000 or wsd:steps=9000,decay=0.2; default: by siblings or log.",
)
@click.option("--steps", type=options.COUNT, metavar="T", help="Last planned step, if log and siblings lack it.")
@options.log_options
@click.option("--run", "run_name", metavar="NAME", help="The run to forecast, where the log holds several.")
@click.option(
    "--measured",
    type=options.FILE,
    help="What `toposcope cooldown --json` wrote: the gain of a cool-down, in place of a prior.",
)
@click.option("--all", "show_all", is_flag=True, help="Also list the forecasters that refuse, and why.")
@options.json_option
@options.page_or_figure_option
@click.option("--watch", type=options.ABOVE_0, metavar="SECONDS", help="Repeat as the log grows.")
def forecast(
    log: Path,
    siblings: Path | None,
    schedule: str,
    steps: int | None,
    reading: dict[str, Any],
    run_name: str | None,
    measured: Path | None,
    show_all: bool,
    as_json: bool,
    out: Path | None,
    watch: float | None,
) -> None:
    """Predict a run's final loss, with an interval, and say whether the run is healthy.

    The log may be what a script printed, CSV, JSON, Parquet, TensorBoard, trainer_state.json, MLflow, W&B or a study.
    Complete logs of similar runs make the forecast closer and its interval narrower. With --watch the forecast is
    repeated whenever the log has grown, until the last step. The log of a run that diverged has no final loss: the exit
    status is 1.

    \b
    Example:
      toposcope forecast log.csv --schedule cosine:steps=20000
      toposcope forecast runs/now --siblings runs --out forecast
      toposcope forecast log.csv --siblings runs --watch 60
      toposcope forecast log.csv --schedule wsd:steps=20000,decay=0.1 --measured cooldown.json
    """
    _check(schedule, reading["columns"], reading["unit"])
    cool_downs: tuple[CoolDown, ...] = ()
    if measured is not None:
        from toposcope.forecasting.stored_cooldowns import read_cool_downs

        with options.bad_use():
            cool_downs = read_cool_downs(measured)
    complete: CompleteRuns | None = None

    def make() -> ForecastReport:
        from toposcope.analysis.health import health
        from toposcope.forecasting import forecast as forecast_run
        from toposcope.forecasting.forecast_report import read_siblings
        from toposcope.forecasting.forecaster import RefusedError
        from toposcope.forecasting.headline import standing
        from toposcope.forecasting.siblings import with_events
        from toposcope.logs import read_log
        from toposcope.logs.reading import beginning
        from toposcope.logs.schedules.schedule import planned

        nonlocal complete
        if siblings is None and not reading["pattern"]:
            # What its first rows show to be impossible is said before all the others are read.
            first = beginning(log, reading["columns"], reading["unit"], reading["every"])
            if first is not None:
                planned(first, schedule, steps)
        read = with_events(read_log(log, run=run_name, **reading), log)
        if siblings is not None and complete is None:
            with options.bad_use():
                complete = read_siblings(siblings, read, **reading)
        try:
            return forecast_run(read, siblings=complete, schedule=schedule, last_step=steps, measured=cool_downs)
        except ToposcopeError as error:
            is_mistake = (schedule or steps) and not isinstance(error, RefusedError)
            if not (is_mistake or as_json or watch):
                click.echo(standing(read, health(read)))
            raise

    if watch is not None:
        _exit(_watch(make, watch, as_json, out))
        return
    with options.bad_use():
        report = make()
    written = _write(report, out) if out is not None else ""
    print_report(report.to_dict, lambda: _print(report, show_all), as_json=as_json, written=written)
    _exit(report)


def _exit(report: ForecastReport) -> None:
    """End with status 1 if the run diverged."""
    if report.log.diverged is not None:
        raise SystemExit(1)


def _check(schedule: str, columns: Mapping[str, str], unit: str | None) -> None:
    """Refuse options that are wrong for every log."""
    from toposcope.logs.reading import checked_columns
    from toposcope.logs.schedules.declared import read_declared

    with options.bad_use():
        if schedule:
            read_declared(schedule)
        checked_columns(columns, unit)


def _watch(make: Callable[[], ForecastReport], seconds: float, as_json: bool, out: Path | None) -> ForecastReport:
    """Forecast again whenever the log has grown, until it is complete or has diverged, or the user interrupts."""
    from time import sleep

    last_step: int | None = None
    printed: set[str] = set()
    last_error = ""
    try:
        while True:
            try:
                report = make()
            except ToposcopeError as error:
                # a log that grows may be truncated, replaced or missing for a moment
                if str(error) != last_error:
                    last_error = str(error)
                    click.echo(f"waiting: {last_error}", err=True)
                sleep(seconds)
                continue
            last_error, step = "", report.log.last_seen
            if step != last_step:
                last_step = step
                _print_line(report, as_json, printed)
                if out is not None:
                    _write(report, out)
            if report.results is None:
                return report
            sleep(seconds)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(options.INTERRUPTED) from None


def _print_line(report: ForecastReport, as_json: bool, printed: set[str]) -> None:
    """Print a forecast as one line, and the remarks that were not printed before."""
    from datetime import datetime

    if as_json:
        print_json(report.to_dict())
        return
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    step, last = report.log.last_seen, report.schedule.last_step
    of = "" if report.log.diverged is not None else f" of {last:,} ({min(step / last, 1.0):.0%})"
    click.echo(f"{now}  step {step:,}{of}  {report.headline()}")
    for remark in report.remarks:
        words = re.sub(r"\d[\d.,]*", "", remark)  # the same remark with other numbers is not new
        if words not in printed:
            printed.add(words)
            click.echo(f"note: {remark}", err=True)


def _print(report: ForecastReport, show_all: bool) -> None:
    click.echo(report.headline())
    print_lines(f"{what}: {sentence}" for what, sentence in report.inputs().items())
    if report.results is not None:
        refused = report.results.refused
        rows: list[tuple[str | None, ...]] = [
            (name, *(f"{each:.{report.digits}f}" for each in (f.loss, f.low, f.high)))
            for name, f in report.results.forecasts.items()
            if name != "default"
        ]
        title = f"final loss of {report.log.name}, {report.log.unit}, by forecaster; default: {report.chosen}"
        print_table(("forecaster", "loss", "low", "high"), rows, title)
        if show_all and refused:
            print_table(("forecaster", "no forecast because"), list(refused.items()), "forecasters that refuse")
        elif refused:
            click.echo(f"{counted(len(refused), 'forecaster refuses', 'forecasters refuse')}; --all shows why")
    print_notes(report.remarks)


def _write(report: ForecastReport, out: Path) -> str:
    """Write the page or the figure; return a line that says where."""
    from toposcope.report.forecast import write_forecast

    return write_out(out, lambda folder: write_forecast(folder, report), report.plot)
