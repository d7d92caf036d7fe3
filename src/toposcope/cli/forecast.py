"""``toposcope forecast``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli import options
from toposcope.cli.output import print_lines, print_notes, print_report, print_table, save_figure
from toposcope.errors import ToposcopeError
from toposcope.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toposcope.forecasting.forecast_report import ForecastReport


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
@options.figure_option
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
) -> None:
    """Predict a run's final loss, with an interval, and say whether the run is healthy.

    The log may be what a script printed, CSV, JSON, Parquet, TensorBoard, trainer_state.json, MLflow, W&B or a study.
    Complete logs of similar runs make the forecast closer and its interval narrower. The log of a run that diverged has
    no final loss: the exit status is 1. `toposcope check` watches a run.

    \b
    Example:
      toposcope forecast log.csv --schedule cosine:steps=20000
      toposcope forecast runs/now --siblings runs --out forecast.svg
      toposcope forecast log.csv --schedule wsd:steps=20000,decay=0.1 --measured cooldown.json
    """
    _check(schedule, reading["columns"], reading["unit"])
    with options.bad_use():
        report = _forecast(log, siblings, schedule, steps, reading, run_name, measured, as_json=as_json)
    written = "" if out is None else save_figure(out, report.plot())
    print_report(report.to_dict, lambda: _print(report, show_all), as_json=as_json, written=written)
    if report.log.diverged is not None:
        raise SystemExit(1)


def _forecast(
    log: Path,
    siblings: Path | None,
    schedule: str,
    steps: int | None,
    reading: dict[str, Any],
    run_name: str | None,
    measured: Path | None,
    *,
    as_json: bool,
) -> ForecastReport:
    """Forecast the run; of one whose end cannot be predicted, print how it stands before the error."""
    from toposcope.analysis.health import health
    from toposcope.forecasting import forecast as forecast_run
    from toposcope.forecasting.forecast_report import read_siblings
    from toposcope.forecasting.forecaster import RefusedError
    from toposcope.forecasting.headline import standing
    from toposcope.forecasting.siblings import with_events
    from toposcope.forecasting.stored_cooldowns import read_cool_downs
    from toposcope.logs import read_log
    from toposcope.logs.reading import beginning
    from toposcope.logs.schedules.schedule import planned

    cool_downs = () if measured is None else read_cool_downs(measured)
    if siblings is None and not reading["pattern"]:
        # What its first rows show to be impossible is said before all the others are read.
        first = beginning(log, reading["columns"], reading["unit"], reading["every"])
        if first is not None:
            planned(first, schedule, steps)
    read = with_events(read_log(log, run=run_name, **reading), log)
    complete = None if siblings is None else read_siblings(siblings, read, **reading)
    try:
        return forecast_run(read, siblings=complete, schedule=schedule, last_step=steps, measured=cool_downs)
    except ToposcopeError as error:
        is_mistake = (schedule or steps) and not isinstance(error, RefusedError)
        if not (is_mistake or as_json):
            click.echo(standing(read, health(read)))
        raise


def _check(schedule: str, columns: Mapping[str, str], unit: str | None) -> None:
    """Refuse options that are wrong for every log."""
    from toposcope.logs.reading import checked_columns
    from toposcope.logs.schedules.declared import read_declared

    with options.bad_use():
        if schedule:
            read_declared(schedule)
        checked_columns(columns, unit)


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
