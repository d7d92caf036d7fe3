"""The page: whether loops fall with generalisation, when, and the runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import (
    UNDETERMINED,
    Block,
    Page,
    Picture,
    ReportSection,
    Tables,
    counted,
    csv_link,
    joined,
    makers_of,
    number_of,
    paragraph,
    plain,
    table,
    text_of,
    whole,
)
from toposcope_experiments.grokking.comparison import RULE as SIGN_RULE
from toposcope_experiments.grokking.comparison import SIGN, compare
from toposcope_experiments.grokking.design import CONDITIONS
from toposcope_experiments.grokking.experiment import MeasuredRuns, feature_table, run_table, window_of
from toposcope_experiments.small_networks.course_chart import course_panel, course_rows
from toposcope_experiments.small_networks.page_tables import P_VALUES, reasons
from toposcope_experiments.weight_loops.features import DRAWS, LOOPS, MATRICES, kinds_of
from toposcope_experiments.weight_loops.timing import EARLIER, LATER, RULE, TOGETHER, UNCHANGED, timing_table

ACCURACY = "validation_accuracy"
SAID = {
    EARLIER: "changes before the network generalises",
    TOGETHER: "changes with generalisation",
    LATER: "changes after the network has generalised",
    UNCHANGED: "does not change in most runs",
    UNDETERMINED: "changes, and when cannot be told",
}


class WeightLoopsData:
    """The measured populations, how they compare, and the tables of the page."""

    def __init__(self, measured: Sequence[MeasuredRuns]) -> None:
        self.measured = list(measured)
        self.comparisons = [compare(m, kinds_of(m.runs[0].architecture.name)) for m in measured]
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers_of(SECTIONS))


def lead(data: WeightLoopsData) -> list[str]:
    """Return the sentences at the top: of the loops of each matrix, then of all that is measured."""
    verdicts, timing = data.tables["verdicts"], data.tables["timing"]
    n = verdicts["architecture"].n_unique()
    sentences = []
    loops = verdicts.filter(pl.col("feature").str.ends_with(LOOPS))
    signs = loops.filter(verdict=SIGN)
    places = [(name, feature.partition(":")[0]) for name, feature in signs.select("architecture", "feature").rows()]
    which = f": {joined([f'{matrix} of {name}' for name, matrix in places])}" if places else ""
    sentences.append(
        f"The number of loops, against the null, is a sign of generalisation in {len(signs)} of "
        f"{counted(len(loops), 'matrix', 'matrices')} of {counted(n, 'population')}{which}."
    )
    for kind, count in verdicts.filter(verdict=SIGN).group_by("kind", maintain_order=True).len().rows():
        total = len(verdicts.filter(kind=kind))
        sentences.append(f"Of {kind} {count} of {total} features are signs.")
    for row in timing.filter(pl.col("feature").str.ends_with(LOOPS)).to_dicts():
        matrix = row["feature"].partition(":")[0]
        when = f"; a median of {whole(abs(row['lag']))} steps" if row["verdict"] in (EARLIER, LATER) else ""
        sentences.append(
            f"In the {row['architecture']} the {LOOPS} of the {matrix} {SAID[row['verdict']]} "
            f"({row['n_timed']} of {row['n_runs']} runs have a time{when})."
        )
    return sentences


def _sign_blocks(data: WeightLoopsData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    verdicts = data.tables["verdicts"]
    specs = (
        text_of("population", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        number_of("at the start", "start", plain),
        number_of("once generalised", "value", plain),
        text_of("nearest control", "nearest"),
        *P_VALUES,
        text_of("verdict", "verdict"),
        *reasons(verdicts),
    )
    note = paragraph(SIGN_RULE, " ", csv_link("verdicts"), ", ", csv_link("differences"), ".", note=True)
    found = table("verdicts", "Means over the runs that generalise, and verdicts", specs, verdicts.to_dicts())
    return (*pictures, found, note)


def _timing_blocks(data: WeightLoopsData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs = (
        text_of("network", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        number_of("runs", "n_runs", whole),
        number_of("with a time", "n_timed", whole),
        number_of("median lag, steps", "lag", whole),
        *P_VALUES,
        text_of("verdict", "verdict"),
    )
    rows: list[dict[str, Any]] = data.tables["timing"].to_dicts()
    found = table("timing", "When features change, next to generalisation", specs, rows)
    return (found, paragraph(RULE, " ", csv_link("timing"), ".", note=True))


def _run_blocks(data: WeightLoopsData, _: Sequence[Picture]) -> Iterable[Block | None]:
    note = (
        f"The networks and conditions are those of `toposcope grokking`. Of each matrix the loops are compared with "
        f"those of {DRAWS} random ones of the same singular values and norms of rows and columns."
    )
    return (paragraph(note), paragraph("Runs: ", csv_link("runs"), ", all measurements: ", csv_link("features"), "."))


def course_charts(data: WeightLoopsData) -> list[Chart]:
    """Draw the loops of each matrix over training: a chart for each population."""
    return [_courses(m) for m in data.measured]


def _courses(measured: MeasuredRuns) -> Chart:
    names = [f"{name}: {LOOPS}" for name in MATRICES[measured.runs[0].architecture.name].values()]
    values = measured.log | measured.features
    conditions = [condition.name for condition in CONDITIONS]
    places = {name: measured.places(name) for name in conditions}
    panels_of = (ACCURACY, *names)
    rows = pl.concat(course_rows(name, values[name], measured.steps, places) for name in panels_of)
    window = window_of(measured)
    panels = [
        course_panel(rows, name, name.replace("_", " "), conditions, window[1] if window else None)
        for name in panels_of
    ]
    title = f"Loops of weight matrices against their null: {measured.architecture}"
    caption = (
        "Lines: means over runs; bands: from the lowest to the highest run. Dashed: the step by which all runs that "
        "generalise have done so."
    )
    alternative = f"Line charts of the validation accuracy and of {joined(names)} against the step. {title}."
    name = f"weight-loops-{measured.architecture.replace(', ', '-')}"
    return Chart(name, title, caption, alternative, alt.concat(*panels, columns=2))


Section = ReportSection[WeightLoopsData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="signs",
        title="Loops and generalisation",
        tables={
            "verdicts": lambda data: pl.concat(c.verdicts for c in data.comparisons),
            "differences": lambda data: pl.concat(c.differences for c in data.comparisons),
        },
        charts=(course_charts,),
        blocks=_sign_blocks,
        summary=lead,
    ),
    Section(
        anchor="timing",
        title="When",
        tables={"timing": lambda data: timing_table(data.measured)},
        blocks=_timing_blocks,
    ),
    Section(
        anchor="runs",
        title="Runs",
        tables={"runs": lambda data: run_table(data.measured), "features": lambda data: feature_table(data.measured)},
        blocks=_run_blocks,
    ),
)


def weight_loops_page(measured: Sequence[MeasuredRuns]) -> Page[WeightLoopsData]:
    """Return the page of the experiment."""
    return Page(SECTIONS, WeightLoopsData(measured))
