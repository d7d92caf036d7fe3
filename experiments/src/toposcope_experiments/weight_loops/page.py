"""The page: whether loops fall with generalisation, when, and the runs."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.charts import Chart
from toposcope.extend import (
    UNDETERMINED,
    Block,
    Page,
    Picture,
    ReportSection,
    counted,
    csv_link,
    joined,
    makers_of,
    number_of,
    paragraph,
    table,
    text_of,
    whole,
)
from toposcope_experiments.grokking.charts import ACCURACY, course_chart
from toposcope_experiments.grokking.comparison import SIGN
from toposcope_experiments.grokking.experiment import MeasuredRuns
from toposcope_experiments.grokking.page import GrokkingData, left_out
from toposcope_experiments.grokking.page_sections import RUN_TABLES, SIGN_TABLES, run_blocks, sign_blocks
from toposcope_experiments.small_networks.page_tables import P_VALUES
from toposcope_experiments.weight_loops.features import DRAWS, LOOPS, MATRICES, MAX_MISFIT, kinds_of
from toposcope_experiments.weight_loops.timing import EARLIER, LATER, RULE, TOGETHER, UNCHANGED, timing_table

SAID = {
    EARLIER: "changes before the network generalises",
    TOGETHER: "changes with generalisation",
    LATER: "changes after the network has generalised",
    UNCHANGED: "has no time in most runs",
    UNDETERMINED: "changes, and when cannot be told",
}


def lead(data: GrokkingData) -> list[str]:
    """Return the sentences at the top: of the loops of each matrix, then of all that is measured."""
    verdicts, timing = data.tables["verdicts"], data.tables["timing"]
    loops = verdicts.filter(pl.col("feature").str.ends_with(LOOPS))
    judged, sentences = loops.filter(pl.col("verdict") != UNDETERMINED), []
    signs = judged.filter(verdict=SIGN).select("architecture", "feature").rows()
    places = [f"{feature.partition(':')[0]} of {name}" for name, feature in signs]
    which = f": {joined(places)}" if places else ""
    untold = f"; of {len(loops) - len(judged)} more it cannot be told" if len(judged) < len(loops) else ""
    if len(judged):
        sentences.append(
            f"The number of loops, against the null, is a sign of generalisation in {len(signs)} of "
            f"{counted(len(judged), 'matrix', 'matrices')}{which}{untold}."
        )
    else:
        sentences.append("Whether the number of loops is a sign of generalisation cannot be told of any matrix.")
    for kind, of_kind in verdicts.filter(pl.col("verdict") != UNDETERMINED).group_by("kind", maintain_order=True):
        count = len(of_kind.filter(verdict=SIGN))
        sentences.append(f"Of {kind[0]} {count} of {len(of_kind)} features that could be judged are signs.")
    for row in timing.filter(pl.col("feature").str.ends_with(LOOPS)).to_dicts():
        matrix = row["feature"].partition(":")[0]
        when = f"; a median of {whole(abs(row['lag']))} steps" if row["verdict"] in (EARLIER, LATER) else ""
        sentences.append(
            f"In the {row['architecture']} the {LOOPS} of the {matrix} {SAID[row['verdict']]} "
            f"({row['n_timed']} of {row['n_runs']} runs have a time{when})."
        )
    return sentences


def _timing_blocks(data: GrokkingData, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs = (
        text_of("network", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        number_of("runs", "n_runs", whole),
        number_of("with a time", "n_timed", whole),
        number_of("median lag, steps", "lag", whole),
        *P_VALUES,
        text_of("verdict", "verdict"),
    )
    found = table("timing", "When features change, next to generalisation", specs, data.tables["timing"].to_dicts())
    return (found, paragraph(RULE, " ", csv_link("timing"), ".", note=True))


def _run_blocks(data: GrokkingData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    note = (
        f"The networks and conditions are those of `toposcope grokking`. Of each matrix the loops are compared with "
        f"those of {DRAWS} random ones of the same singular values and norms of rows and columns; where these norms "
        f"are missed by more than {MAX_MISFIT:.0%}, z is unknown."
    )
    return (paragraph(note), *run_blocks(data, pictures))


def course_charts(data: GrokkingData) -> list[Chart]:
    """Draw the loops of each matrix over training: a chart for each population."""
    return [_courses(m) for m in data.measured]


def _courses(measured: MeasuredRuns) -> Chart:
    shown = (ACCURACY, *(f"{name}: {LOOPS}" for name in MATRICES[measured.runs[0].architecture.name].values()))
    title = f"Loops of weight matrices against their null: {measured.architecture}"
    return course_chart(measured, shown, f"weight-loops-{measured.architecture.replace(', ', '-')}", title, columns=2)


Section = ReportSection[GrokkingData]
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="signs",
        title="Loops and generalisation",
        tables=SIGN_TABLES,
        charts=(course_charts,),
        blocks=sign_blocks,
        summary=lead,
        notes=left_out,
    ),
    Section(
        anchor="timing",
        title="When",
        tables={"timing": lambda data: timing_table(data.measured)},
        blocks=_timing_blocks,
    ),
    Section(anchor="runs", title="Runs", tables=RUN_TABLES, blocks=_run_blocks),
)


def weight_loops_page(measured: Sequence[MeasuredRuns]) -> Page[GrokkingData]:
    """Return the page of the experiment."""
    data = GrokkingData(measured, makers_of(SECTIONS), lambda m: kinds_of(m.runs[0].architecture.name))
    return Page(SECTIONS, data)
