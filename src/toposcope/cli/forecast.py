"""``toposcope forecast``."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.shared import BadUse, bad_use, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from toposcope.forecasting.ask import Answer
    from toposcope.forecasting.backtest import Collected
    from toposcope.logs import Log

KINDS = ("png", "svg", "pdf")


def columns_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--column`` and ``--unit``; the command takes the first as pairs."""
    command = click.option("--unit", metavar="UNIT", help="Of the losses: nats, bits, 'bits per byte'.")(command)
    return click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="WHAT=NAME",
        help="What a column is, where its name does not tell: loss=ce; repeatable.",
    )(command)


def columns_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the columns by what they are."""
    found = {}
    for pair in pairs:
        what, equals, name = pair.partition("=")
        if not equals or not what.strip() or not name.strip():
            raise BadUse(f"--column {pair}: expected WHAT=NAME, such as loss=ce")
        found[what.strip()] = name.strip()
    return found


@click.command()
@click.argument("log", type=click.Path(exists=True, path_type=Path))
@click.option("--siblings", type=click.Path(exists=True, path_type=Path), help="Complete logs of runs like it.")
@click.option(
    "--schedule", default="", metavar="TEXT", help="Of the learning rate: cosine:steps=20000, wsd:steps=9000,decay=0.2."
)
@click.option("--steps", type=click.IntRange(min=1), metavar="T", help="Last step planned, if the log does not tell.")
@columns_option
@click.option("--run", "run_name", metavar="NAME", help="Which, where the log is of several runs.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Figure to draw: .png, .svg or .pdf.")
@click.option("--watch", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Again, as it grows.")
def forecast(
    log: Path,
    siblings: Path | None,
    schedule: str,
    steps: int | None,
    columns: tuple[str, ...],
    unit: str | None,
    run_name: str | None,
    as_json: bool,
    out: Path | None,
    watch: float | None,
) -> None:
    """Tell where the loss of a run will end, how sure that is, and what each forecaster says.

    The log may be CSV, JSON, Parquet, TensorBoard, trainer_state.json, MLflow, W&B or a study. With complete logs of
    runs like it the forecast is nearer, and its interval narrower. With --watch it is made again whenever the log has
    grown, until the last step.

    \b
    Example:
      toposcope forecast log.csv --schedule cosine:steps=20000
      toposcope forecast runs/now --siblings runs --out forecast.png
      toposcope forecast log.csv --siblings runs --watch 60
    """
    asking = _Asking(log, siblings, schedule, steps, columns_of(columns), unit, run_name)
    if out is not None and out.suffix.lower().lstrip(".") not in KINDS:
        raise BadUse(f"--out {out}: the name of a figure ends in {', '.join('.' + kind for kind in KINDS)}")
    with bad_use():
        asking.check()
    if watch is not None:
        _watch(asking, watch, as_json, out)
        return
    with bad_use():
        answer = asking.ask()
    if out is not None:
        _draw(answer, out)
    if as_json:
        click.echo(json.dumps(_told(answer), sort_keys=True))
    else:
        _show(answer)
    if out is not None:
        click.echo(f"figure: {out}", err=as_json)


class _Asking:
    """What the user asked for; asked again, only the log is read again."""

    def __init__(
        self,
        path: Path,
        siblings: Path | None,
        schedule: str,
        steps: int | None,
        columns: Mapping[str, str],
        unit: str | None,
        run: str | None,
    ) -> None:
        self._path, self._folder, self._schedule, self._steps = path, siblings, schedule, steps
        self._columns, self._unit, self._run = columns, unit, run
        self._siblings: Collected | None = None

    def check(self) -> None:
        """Refuse what no log can mend."""
        from toposcope.errors import ToposcopeError
        from toposcope.forecasting.schedules.declared import read_declared
        from toposcope.logs import UNITS
        from toposcope.logs.columns import FIELDS

        if self._schedule:
            read_declared(self._schedule)
        if self._unit is not None and self._unit not in UNITS:
            raise ToposcopeError(f"--unit {self._unit}: choose {', '.join(UNITS)}")
        for what in self._columns:
            if what not in FIELDS:
                raise ToposcopeError(f"--column {what}=...: choose from {', '.join(FIELDS)}")

    def ask(self) -> Answer:
        from toposcope.forecasting.ask import ask
        from toposcope.logs import read_log

        log = read_log(self._path, run=self._run, columns=self._columns, unit=self._unit)
        if self._folder is not None and self._siblings is None:
            with bad_use():
                self._siblings = self._read_siblings(self._folder, log)
        return ask(log, self._schedule, self._steps, self._siblings)

    def _read_siblings(self, folder: Path, log: Log) -> Collected:
        from toposcope.errors import ToposcopeError
        from toposcope.forecasting.ask import siblings_of
        from toposcope.logs import read_logs

        try:
            logs = read_logs(folder, columns=self._columns)
        except ToposcopeError:
            if not self._columns:
                raise
            # columns that were named are those of the log; siblings may have come from another tool
            logs = read_logs(folder)
        return siblings_of(log, logs, self._unit)


def _watch(asking: _Asking, seconds: float, as_json: bool, out: Path | None) -> None:
    """Forecast again whenever the log has grown, until it is complete or the user has seen enough."""
    from time import sleep

    from toposcope.errors import ToposcopeError

    seen: int | None = None
    said: set[str] = set()
    trouble = ""
    try:
        while True:
            try:
                answer = asking.ask()
            except ToposcopeError as error:
                # a log that grows may be cut, replaced or away for a moment
                if str(error) != trouble:
                    trouble = str(error)
                    click.echo(f"waiting: {trouble}", err=True)
                sleep(seconds)
                continue
            trouble, step = "", int(answer.log.steps[-1])
            if step != seen:
                seen = step
                _show_again(answer, as_json, said)
                if out is not None:
                    _draw(answer, out)
            if answer.found is None:
                return
            sleep(seconds)
    except KeyboardInterrupt:
        return


def _show_again(answer: Answer, as_json: bool, said: set[str]) -> None:
    """Print a forecast as one line, and what has not been said before."""
    from datetime import datetime

    from toposcope.forecasting.ask import headline

    if as_json:
        click.echo(json.dumps(_told(answer), sort_keys=True))
        return
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    step, last = int(answer.log.steps[-1]), answer.schedule.last_step
    click.echo(f"{now}  step {step:,} of {last:,} ({step / last:.0%})  {headline(answer)}")
    for remark in answer.remarks:
        words = re.sub(r"\d[\d.,]*", "", remark)  # the same with other numbers is nothing new
        if words not in said:
            said.add(words)
            click.echo(f"note: {remark}", err=True)


def _show(answer: Answer) -> None:
    from toposcope.forecasting.ask import facts, headline

    click.echo(headline(answer))
    for what, fact in facts(answer).items():
        click.echo(f"{what}: {fact}")
    if answer.found is not None:
        digits = answer.digits
        rows: list[tuple[str | None, ...]] = [
            (name, *(f"{each:.{digits}f}" for each in (f.loss, f.low, f.high)), None)
            for name, f in answer.found.forecasts.items()
            if name != "default"
        ]
        rows += [(name, None, None, None, why) for name, why in answer.found.refused.items()]
        rows = [row if any(row[4] for row in rows) else row[:4] for row in rows]
        columns = ("forecaster", "loss", "low", "high", "no forecast because")[: len(rows[0])]
        print_table(columns, rows, f"final loss of {answer.log.name}, {answer.log.unit}")
    for remark in answer.remarks:
        click.echo(f"note: {remark}", err=True)


def _draw(answer: Answer, path: Path) -> None:
    import matplotlib as mpl

    from toposcope.files import write_bytes
    from toposcope.report.figures.drawn import NAMELESS, STYLE
    from toposcope.report.figures.forecast import forecast as draw
    from toposcope.report.rendering import render

    with mpl.rc_context(STYLE):
        drawn = draw(answer)
    write_bytes(path, render(drawn.figure, STYLE, NAMELESS)[path.suffix.lower().lstrip(".")])


def _told(answer: Answer) -> dict[str, Any]:
    """Return everything, as JSON has it: null for what is not finite."""
    from toposcope.forecasting.forecast import fraction_seen
    from toposcope.forecasting.intervals import band

    log, schedule, found = answer.log, answer.schedule, answer.found
    last = int(log.steps[-1])
    final, error = log.final_loss()
    told: dict[str, Any] = {
        "log": {
            "name": log.name, "unit": log.unit, "target": log.target, "family": log.family, "n": len(log.steps),
            "first_step": int(log.steps[0]), "last_step": last, "loss": final, "parameters": log.parameters,
        },
        "schedule": {
            "last_step": schedule.last_step, "peak": schedule.peak, "warm_up": schedule.warm_up,
            "final": float(schedule.rates[-1]), "decay_seen": schedule.decay_seen(last),
        },
        "fraction_seen": fraction_seen(log, schedule),
        "complete": found is None,
        "final_loss": None if found is not None else {"loss": final, "standard_error": error},
        "siblings": [run.log.name for run in answer.siblings],
        "remarks": answer.remarks,
        "default": None,
        "forecasts": {},
        "refused": {},
        "curve": None,
    }  # fmt: skip
    if found is not None and answer.believed is not None:
        believed = answer.believed
        low, high = band(believed)
        curve = {"steps": believed.steps, "loss": believed.curve, "low": low, "high": high}
        told |= {
            "default": answer.chosen,
            "forecasts": {
                name: {
                    "loss": each.loss, "low": each.low, "high": each.high, "remarks": each.remarks,
                    "diagnostics": each.diagnostics, "siblings_asked": len(each.errors),
                }
                for name, each in found.forecasts.items()
            },
            "refused": found.refused,
            "curve": {name: values.tolist() for name, values in curve.items()},
        }  # fmt: skip
    plain: dict[str, Any] = as_plain(told)
    return plain


def as_plain(value: Any) -> Any:
    """Return what JSON can hold: null for what is not finite."""
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
