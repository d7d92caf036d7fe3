"""What moves over training: the loss, topology of weights and gradients, diagrams; the runs."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import polars as pl

from toposcope.analysis.phases import move, move_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.probes.feature import Feature
from toposcope.report import formats
from toposcope.report import headline as headlines
from toposcope.report.charts import series
from toposcope.report.charts.diagrams import betti_charts, diagram_chart
from toposcope.report.document import Block, folded, linked, paragraph
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Spec, feature_of, headline_rows, number_of, numbers, table, text_of
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses
from toposcope.study.kinds import feature_named
from toposcope.typing import Vector
from toposcope.wording import counted, examples


def loss_chart(data: StudyData) -> Chart | None:
    """Draw the loss of every run at its checkpoints, and the logged training loss behind it."""
    with_loss = [t for t in data.trajectories if t.targets]
    if not with_loss:
        return None
    evaluations, evaluated = series.evaluations(data)
    validated = set(evaluations.get_column("run"))
    rows = series.rows_of([t for t in with_loss if t.run not in validated], lambda t: next(iter(t.targets.values())))
    rows = pl.concat([evaluations, rows])
    ends = [pair for t in with_loss if (pair := series.first_last(next(iter(t.targets.values())))) is not None]
    names = list(dict.fromkeys(headlines.TARGETS[next(iter(t.targets))] for t in with_loss))
    what = " or ".join(names)
    title = f"The {what} {series.direction(ends)}"
    where = evaluated if len(validated) == len(with_loss) else "at the checkpoints"
    caption = f"Lines: {what} {where}, in nats per token; faint: the logged training loss."
    return series.training_chart(
        data, "losses", rows, title, caption, "loss (nats per token)", what="the loss",
        background=series.logged(data, "loss"),
    )  # fmt: skip


TOPOLOGY_CHARTS = {
    headlines.NP: ("neural-persistence", "The mean over the analysed layers, exact on every weight."),
    headlines.H0: (
        "h0-total",
        "The sum of all H0 bar lengths over the analysed layers, exact on every weight; it grows with the weights.",
    ),
    headlines.H1: ("h1-total", "The sum of all H1 bar lengths over the analysed layers; it grows with the weights."),
}
"""Name and caption of the chart of a feature."""


def topology_charts(data: StudyData) -> list[Chart]:
    """Draw the headline features of every run over training."""
    charts = []
    for headline, (name, caption) in TOPOLOGY_CHARTS.items():
        if len(rows := series.feature_rows(data.trajectories, headline.feature)):
            title = f"{headline.name} {_course(data, partial(_values, headline=headline))}"
            charts.append(series.training_chart(data, name, rows, title, caption, headline.axis, what=headline.name))
    return charts


def gradient_charts(data: StudyData) -> list[Chart]:
    """Draw total persistence of gradients, and the same divided by the gradient norm."""
    plain = _gradient_chart(data, "gradients", _values, "total persistence of gradients", "H0 total of gradients")
    divided = _gradient_chart(
        data, "gradients-by-norm", _by_norm, "total persistence / gradient norm",
        "H0 total of gradients over their norm",
    )  # fmt: skip
    return [chart for chart in (plain, divided) if chart is not None]


def _gradient_chart(
    data: StudyData, name: str, value: Callable[..., Vector | None], axis: str, what: str
) -> Chart | None:
    dimensions = {
        "H0": partial(value, headline=headlines.GRADIENT_H0),
        "H1": partial(value, headline=headlines.GRADIENT_H1),
    }
    rows = series.series_of(data.trajectories, dimensions)
    if not len(rows.filter(series="H0")):
        return None
    title = f"{what} {_course(data, dimensions['H0'])}"
    caption = "Persistence of the gradient on one fixed batch, summed over layers; dashed: H1."
    return series.training_chart(data, name, rows, title, caption, axis, dashes=list(dimensions))


def _values(trajectory: Trajectory, headline: headlines.Headline) -> Vector | None:
    return trajectory.features.get(headline.feature)


def _by_norm(trajectory: Trajectory, headline: headlines.Headline) -> Vector | None:
    values, norm = _values(trajectory, headline), trajectory.features.get(headlines.GRADIENT_NORM)
    if values is None or norm is None:
        return None
    return np.asarray(np.divide(values, norm, out=np.full(len(values), np.nan), where=norm > 0))


def _course(data: StudyData, value: Callable[[Trajectory], Vector | None]) -> str:
    return series.course([
        moved
        for t in data.trajectories
        if (values := value(t)) is not None
        if (moved := move(t.steps, values)) is not None
    ])  # fmt: skip


DISTANCES = {f"H{k}": feature_named(f"distances H{k}.wasserstein_2") for k in (0, 1)}


def change_rate_chart(data: StudyData) -> Chart | None:
    """Draw the Wasserstein-2 distance between the diagrams of neighbouring checkpoints, per step."""
    rows = series.series_of(data.trajectories, {k: partial(_per_step, feature=f) for k, f in DISTANCES.items()})
    rows = rows.filter(pl.col("value") > 0)
    if not len(rows):
        return None
    dimension = str(rows.item(0, "series"))
    peaks = rows.filter(series=dimension).sort("value", descending=True).unique("run", keep="first")
    low, *_, high = [*peaks.get_column("step").sort(), int(peaks.get_column("step").to_numpy().max())]
    where = f"at step {low:,}" if low == high else f"between steps {low:,} and {high:,}"
    title = f"{dimension} diagrams change fastest {where} in {series.runs_of(len(peaks), len(peaks))}"
    caption = "Wasserstein-2 distance from the checkpoint before, over the steps between; dashed: H1."
    return series.training_chart(
        data, "diagram-change", rows, title, caption, "Wasserstein-2 distance per step",
        what="the rate of change of diagrams", dashes=list(DISTANCES),
    )  # fmt: skip


def learning_rate_chart(data: StudyData) -> Chart | None:
    """Draw the learning rate of every run."""
    rows = series.logged(data, "learning_rate")
    if not len(rows):
        return None
    by_run = rows.sort("step").group_by("run").agg(last=pl.col("value").last(), highest=pl.col("value").max())
    lower = len(by_run.filter(pl.col("last") < pl.col("highest")))
    title = f"The learning rate ends below its highest value in {series.runs_of(lower, len(by_run))}"
    figure = training_lines(rows, "learning rate", series.run_names(data), height=140, may_be_log=False)
    return Chart("learning-rate", title, "As logged.", f"Line chart of the learning rate. {title}.", figure)


def _per_step(trajectory: Trajectory, feature: Feature) -> Vector | None:
    values = trajectory.features.get(feature)
    return None if values is None else values / np.diff(trajectory.steps, prepend=np.nan)


def _moved(data: StudyData) -> Iterable[Block | None]:
    ends = ("first", "last", "turn_value")
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("first", "first", formats.plain, next_to=ends),
        number_of("last", "last", formats.plain, next_to=ends),
        number_of("change", "change", formats.percent),
        text_of("turn", "turn", group="on the way"),
        number_of("at step", "turn_step", formats.whole, group="on the way"),
        number_of("value", "turn_value", formats.plain, group="on the way", next_to=ends),
    )
    rows = headline_rows(data.tables["moved"])
    return (
        folded(table("moved", "First and last value of each feature", specs, rows)),
        linked("All features: moved.csv.", note=True) if rows else None,
    )


def _runs(data: StudyData) -> Iterable[Block | None]:
    finals = {t.run: (name, v[-1]) for t in data.trajectories for name, v in list(t.targets.items())[:1]}
    rows = [
        {
            **row,
            "target": headlines.named(finals.get(row["run"], ("", 0))[0]),
            "final": finals.get(row["run"], ("", np.nan))[1],
        }
        for row in data.runs.to_dicts()
    ]
    texts = TextLosses.of(data)
    rows = [{**row, **texts.by_run.get(row["run"], {})} for row in rows]
    specs: list[Spec] = [
        text_of("run", "run", names_row=True),
        text_of("kind", "kind"),
        *numbers(whole={"parameters": "n_parameters"}),
        text_of("status", "status"),
        *numbers(whole={"last step": "last_step", "checkpoints": "n_checkpoints"}),
        number_of("last value", "final", formats.plain, group="loss at the last measured checkpoint"),
        text_of("which", "target", group="loss at the last measured checkpoint"),
        *texts.columns(),
    ]
    note = paragraph(NOT_COMPARABLE, note=True) if texts.tokens_differ else None
    return (table("runs", "Runs of the study", specs, rows), note)


def _finding(data: StudyData) -> str:
    """Say where the first of the headline features goes that was measured, H0 total before the others."""
    for headline in sorted(headlines.TRAJECTORIES, key=lambda h: h is not headlines.H0):
        if any(headline.feature in t.features for t in data.trajectories):
            return f"{headline.name} {series.direction_of(data.trajectories, headline.feature)}"
    return ""


def _summary(data: StudyData) -> list[str]:
    """Name the runs that diverged or did not finish, and count what failed."""
    runs, n_errors = data.runs, len(data.errors)
    sentences = []
    for run, step in runs.filter(status="diverged").select("run", "last_step").iter_rows():
        sentences.append(
            f"{run} diverged at step {step}: its loss is not finite there; it is analysed up to that step."
        )
    unfinished = runs.filter(pl.col("status").is_in(["failed", "running", "stopped"])).get_column("run").to_list()
    if unfinished:
        sentences.append(f"Not complete: {examples(unfinished)}.")
    if n_errors:
        sentences.append(
            f"{counted(n_errors, 'part')} of the work failed; the report lists {'it' if n_errors == 1 else 'them'}."
        )
    return sentences


SECTION = ReportSection(
    anchor="moves",
    title="What moves",
    position=30,
    tables={"runs": lambda data: data.runs, "moved": lambda data: move_table(data.trajectories)},
    charts=(
        loss_chart,
        topology_charts,
        change_rate_chart,
        learning_rate_chart,
        diagram_chart,
        betti_charts,
        gradient_charts,
    ),
    blocks=lambda data, pictures: (*pictures, *_moved(data), *_runs(data)),
    finding=_finding,
    summary=_summary,
    summary_position=40,
)
