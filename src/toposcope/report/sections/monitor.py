"""The monitor's alerts, and its forecasts of the final loss compared with the outcome."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.logs.anomalies import divergence
from toposcope.logs.run import FINAL_SHARE
from toposcope.report.document import Block, Picture, csv_link, folded, linked, paragraph
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import numbers, table, text_of
from toposcope.wording import COVERAGE, counted, examples

MAX_ALERTS_SHOWN = 100


def final_losses(data: StudyData) -> dict[str, float]:
    """Return the final loss of the runs that reached their planned last step."""
    planned = data.forecasts.group_by("run").agg(last_step=pl.col("last_step").last())
    late = (
        data.log.join(planned, on="run")
        .filter(pl.col("loss").is_finite(), pl.col("step") > (1 - FINAL_SHARE) * pl.col("last_step"))
        .group_by("run")
        .agg(pl.col("loss").mean(), reached=pl.col("step").max() >= pl.col("last_step").first())
    )
    return dict(late.filter("reached").select("run", "loss").iter_rows())


def _chart(data: StudyData) -> Chart | None:
    """Draw the forecasts by the step at which they were made, with their intervals."""
    made = data.forecasts.filter(pl.all_horizontal(pl.col("loss", "low", "high").is_finite()))
    if not len(made):
        return None
    rows = made.select("run", "step", value="loss")
    runs = made.get_column("run").unique(maintain_order=True).to_list()
    last = made.row(-1, named=True)
    what = f"{last['run']}: {last['loss']:.3f} ({last['low']:.3f} to {last['high']:.3f}), made at step {last['step']:,}"
    return Chart(
        "forecasts-made",
        f"Last forecast of {what}" if len(runs) == 1 else "Forecasts of the final loss, by the step they were made at",
        f"Each forecast of the final loss by the step at which it was made; shaded: its {COVERAGE:.0%} interval.",
        f"Line chart of forecasts of the final loss over training, in {counted(len(runs), 'run')}.",
        training_lines(rows, "final loss (nats)", runs, bands=made.select("run", "step", "low", "high")),
    )


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    yield from _alerts(data)
    if len(data.forecasts):
        yield paragraph("Forecasts of the final loss made while the runs trained. ", *_outcomes(data),
                  *_divergences(data), "All of them: ", csv_link("forecasts"), ".")  # fmt: skip
    yield from pictures


def _alerts(data: StudyData) -> Iterable[Block | None]:
    alerts = data.alerts
    if not len(alerts):
        return
    specs = (
        text_of("run", "run", names_row=True),
        *numbers(whole={"step": "step", "since": "since"}),
        text_of("check", "check"),
        text_of("place", "place"),
        text_of("message", "message", prose=True),
    )
    more = f"The first {MAX_ALERTS_SHOWN} of {len(alerts):,}. " if len(alerts) > MAX_ALERTS_SHOWN else ""
    more = f"Alerts that the monitor raised during training. {more}"
    yield linked(f"{more}All of them, with their evidence: alerts.csv.")
    yield folded(table("alerts", "Alerts", specs, alerts.head(MAX_ALERTS_SHOWN).to_dicts()))


def _outcomes(data: StudyData) -> Iterable[str]:
    """Yield, for each run that ended, how many of its forecast intervals contain the final loss."""
    for run, loss in final_losses(data).items():
        made = data.forecasts.filter(run=run)
        n = len(made.filter(pl.col("low") <= loss, pl.col("high") >= loss))
        yield f"{run} ended at {loss:.3f}, within the interval of {n} of {counted(len(made), 'forecast')}. "


def _divergences(data: StudyData) -> Iterable[str]:
    """Yield, for each run with forecasts that diverged, where it did."""
    for run in data.forecasts.get_column("run").unique(maintain_order=True):
        rows = data.log.filter(run=run).drop_nulls("loss")
        diverged = divergence(rows.get_column("step").to_numpy(), rows.get_column("loss").to_numpy(), "training")
        if diverged is not None:
            yield f"{run} has no final loss: {diverged}. "


def _finding(data: StudyData) -> str:
    texts = []
    if len(data.alerts):
        runs = data.alerts.get_column("run").unique(maintain_order=True).to_list()
        texts.append(f"{counted(len(data.alerts), 'alert')} in {examples(runs)}")
    if len(data.forecasts):
        texts.append(counted(len(data.forecasts), "forecast"))
    return "; ".join(texts)


def _summary(data: StudyData) -> list[str]:
    alerts = data.alerts
    if not len(alerts):
        return []
    first = alerts.row(0, named=True)
    more = f" and {counted(len(alerts) - 1, 'further alert')}" if len(alerts) > 1 else ""
    what = first["message"].partition(". ")[0].rstrip(".")
    return [f"While {first['run']} trained, the monitor raised an alert at step {first['step']:,}: {what}{more}."]


def _or_absent(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table, without columns if it has no rows: the study was not monitored."""
    return frame if len(frame) else pl.DataFrame()


SECTION = ReportSection(
    anchor="monitor",
    title="Alerts and forecasts while it trained",
    position=20,
    tables={"alerts": lambda data: _or_absent(data.alerts), "forecasts": lambda data: _or_absent(data.forecasts)},
    charts=(_chart,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=60,
)
