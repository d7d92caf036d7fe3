"""The page of a new recipe: its predicted losses and scores, its runs, and held-out runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import altair as alt
import polars as pl

from toposcope.charts.axes import budget_axis
from toposcope.charts.chart import Chart
from toposcope.charts.panels import panels
from toposcope.charts.theme import MUTED
from toposcope.charts.zero import diagonal
from toposcope.forecasting.downstream.figure import link_figure
from toposcope.forecasting.downstream.predicted import frame_of
from toposcope.forecasting.downstream.translation import Translation, TranslationReport
from toposcope.report import formats
from toposcope.report.document import Block, Picture, linked
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.tables import number_of, numbers, percent_of, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import counted, sentence

MAX_POINTS = 400  # held-out runs that are drawn in a panel; of more, evenly chosen ones


def translated_losses_chart(recipe: str, translations: Sequence[Translation]) -> Chart | None:
    """Draw the losses of the new recipe's runs over compute, with the predictions; None if it has no runs."""
    shown = [each for each in translations if len(each.runs)]
    if not shown:
        return None
    compute = [value for each in shown for value in each.runs.C]
    compute += [6 * found.model.N * found.model.D for each in shown for found in each.predictions]
    x = budget_axis("compute", "training compute 6 N D (FLOP)", min(compute) / 1.6, max(compute) * 1.6)
    title = f"Losses of {recipe}"
    caption = "Grey dots: its runs. Diamonds: predictions with 90% intervals."
    text = f"Scatter chart of losses over training compute, {counted(len(shown), 'panel')}. {title}."
    return Chart("losses", title, caption, text, panels({each.loss: _loss_panel(each, x) for each in shown}))


def translation_held_out_chart(translations: Sequence[Translation]) -> Chart | None:
    """Draw predicted against true losses of held-out runs, by the method that is used; None without any."""
    figures = {each.loss: figure for each in translations if (figure := _held_out_panel(each)) is not None}
    if not figures:
        return None
    title = "Losses of held-out runs, predicted from smaller runs and the laws of other recipes"
    caption = "Each recipe in turn is taken for the new one, on every corpus; right predictions lie on the dashed line."
    text = f"Scatter chart of predicted against true losses. {title}."
    return Chart("held-out", title, caption, text, panels(figures))


def _loss_panel(translation: Translation, x: alt.X) -> alt.LayerChart:
    points = translation.runs
    runs = pl.DataFrame({"run": [str(run) for run in points.run], "compute": points.C, "loss": points.loss})
    rows = [
        (each.model.name, 6 * each.model.N * each.model.D, each.loss, each.low, each.high)
        for each in translation.predictions
        if not each.refusal
    ]
    predicted = frame_of(rows, ("model",), ("compute", "loss", "low", "high"))
    y = alt.Y("loss:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))
    colour = alt.Color("model:N", title=None, sort=None, legend=alt.Legend(symbolOpacity=1))
    ranges = alt.Chart(predicted.filter(pl.col("low").is_finite())).mark_rule(strokeWidth=2)
    diamonds = alt.Chart(predicted).mark_point(shape="diamond", size=110, filled=True, opacity=1)
    return alt.LayerChart(layer=[
        alt.Chart(runs).mark_point(size=30, filled=True, color=MUTED).encode(x, y, tooltip=["run:N", "loss:Q"]),
        ranges.encode(x, alt.Y("low:Q", title=None, scale=y["scale"]), alt.Y2("high:Q"), color=colour),
        diamonds.encode(x, y, color=colour, tooltip=["model:N", "loss:Q", "low:Q", "high:Q"]),
    ])  # fmt: skip


def _held_out_panel(translation: Translation) -> alt.LayerChart | None:
    rows = [
        (each.recipe, each.loss, each.run, each.reach, each.predicted, each.true)
        for each in translation.held_out
        if each.method == translation.method
    ]
    if not rows:
        return None
    frame = frame_of(rows, ("recipe", "loss", "run"), ("reach", "predicted", "true"))
    frame = frame.gather_every(-(-len(frame) // MAX_POINTS))
    true = frame.get_column("true").to_list()
    colour = alt.Color("recipe:N", title=None, legend=alt.Legend(symbolOpacity=1))
    dots = alt.Chart(frame).mark_point(size=14, filled=True, opacity=0.5)
    return alt.LayerChart(layer=[
        diagonal(min(true), max(true)),
        dots.encode(
            alt.X("true:Q", title="true loss", scale=alt.Scale(zero=False)),
            alt.Y("predicted:Q", title="predicted", scale=alt.Scale(zero=False)),
            color=colour, tooltip=["run:N", "loss:N", "predicted:Q", "true:Q", "reach:Q"],
        ),
    ])  # fmt: skip


def write_translations(folder: Path, report: TranslationReport) -> Path:
    """Write the page of a new recipe: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, f"Predictions for {report.recipe}", SECTIONS, report)


Data = ReportData[TranslationReport]


def _predictions(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["predictions"]
    names = (text_of("of", "of", names_row=True), text_of("", "what"), text_of("model", "model"))
    columns = (
        *names,
        *numbers(plain={name: name for name in ("predicted", "low", "high")}),
        text_of("method", "method"),
        percent_of("held-out error, %", "error"),
        number_of("intervals held", "held", formats.share),
    )
    refused = (*names, text_of("because", "refused", prose=True))
    note = linked(
        "Held-out errors: of a loss the median relative error, of a score the mean difference. All: predictions.csv.",
        note=True,
    )
    return (
        table(
            "predictions", "Predictions with 90% intervals", columns, frame.filter(pl.col("refused") == "").to_dicts()
        ),
        note,
        table("refused", "What cannot be told", refused, frame.filter(pl.col("refused") != "").to_dicts()),
        *pictures,
    )


def _held_out(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = [
        {"of": each.loss, "method": name, "error": 100 * error, "chosen": "yes" if name == each.method else ""}
        for each in data.report.losses
        for name, error in each.errors.items()
    ]
    specs = (
        text_of("of", "of", names_row=True),
        text_of("method", "method"),
        number_of("median error, %", "error", formats.plain),
        text_of("chosen", "chosen"),
    )
    note = linked("All: held_out.csv.", note=True)
    return (*pictures, table("methods", "Every method on held-out runs", specs, rows), note) if pictures else ()


def _link_chart(data: Data) -> Chart | None:
    predictions = tuple(each for task in data.report.scores for each in task.predictions)
    return link_figure(predictions) if predictions else None


SECTIONS = (
    ReportSection[Data](
        anchor="predictions",
        title="Predictions",
        tables={"predictions": lambda data: data.report.table},
        charts=(lambda data: translated_losses_chart(data.report.recipe, data.report.losses), _link_chart),
        blocks=_predictions,
        summary=lambda data: [*data.report.headline, *map(sentence, data.report.basis)],
    ),
    ReportSection[Data](
        anchor="held-out",
        title="Held-out runs",
        tables={"held_out": lambda data: data.report.held_out},
        charts=(lambda data: translation_held_out_chart(data.report.losses),),
        blocks=_held_out,
    ),
    remarks_section(lambda data: data.report.remarks),
)
