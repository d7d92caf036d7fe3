"""The sections of the experiment's page, with their tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from toposcope.extend import (
    Block,
    Column,
    Page,
    Picture,
    ReportSection,
    Spec,
    csv_link,
    details,
    folded,
    interval_of,
    makers_of,
    number_of,
    p_value,
    paragraph,
    plain,
    sentence,
    share,
    signed,
    table,
    text_of,
    whole,
)
from toposcope_experiments.grokking.charts import control_charts, course_charts
from toposcope_experiments.grokking.comparison import RULE
from toposcope_experiments.grokking.design import CONDITIONS, TREATED
from toposcope_experiments.grokking.experiment import (
    MIN_GENERALISED,
    MIN_MEMORISED,
    MeasuredRuns,
    change_table,
    feature_table,
    jump_table,
    run_table,
)
from toposcope_experiments.grokking.page import GrokkingData, lead, left_out, signed_plain
from toposcope_experiments.small_networks.page_tables import P_VALUES, reasons


def sign_blocks(data: GrokkingData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the verdicts on features, and each control."""
    verdicts, differences = (data.tables[name] for name in ("verdicts", "differences"))
    specs: tuple[Spec, ...] = (
        text_of("network", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        number_of("at the start", "start", plain),
        number_of("once generalised", "value", plain),
        text_of("nearest control", "nearest"),
        *P_VALUES,
        number_of("separate from step", "separate_from", whole),
        text_of("verdict", "verdict"),
        *reasons(verdicts),
    )
    each: tuple[Spec, ...] = (
        text_of("network", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        text_of("control", "control", names_row=True),
        number_of("change", "change", signed_plain),
        number_of("in the control", "control_change", signed_plain),
        number_of("difference", "difference", signed_plain),
        interval_of("95% interval", "low", "high", 3),
        number_of("in SD", "effect", lambda value: signed(value, 1)),
        number_of("p-value", "p", p_value),
    )
    note = paragraph(
        RULE, " “Separate from step”: from there on, until all have generalised, the changes differ from every "
        "control's (p below .05, unadjusted). ", csv_link("verdicts"), ", ", csv_link("differences"), ".", note=True,
    )  # fmt: skip
    return (
        *pictures,
        table("verdicts", "Means over the runs that generalise, and verdicts", specs, verdicts.to_dicts()),
        note,
        folded(table("differences", "Against each control", each, differences.to_dicts()), "Against each control"),
    )


def _jump_blocks(data: GrokkingData, _: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["jumps"]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in frame.to_dicts():
        key = (row["architecture"], row["feature"])
        found = rows.setdefault(key, {**row, **dict.fromkeys(c.name for c in CONDITIONS)})
        found[row["condition"]] = row
    specs: tuple[Spec, ...] = (
        text_of("network", "architecture", names_row=True),
        text_of("feature", "feature", names_row=True),
        (Column("window", True), _window),
        *(_jumps_of(condition.name) for condition in CONDITIONS),
    )
    note = paragraph(
        "Runs with a change point that no smooth trend explains (p below .05), between the step at which the first run "
        "with true labels has memorised its pairs and that at which the last has generalised; in brackets, anywhere. "
        "The window is the same in all conditions. All change points: ", csv_link("changes"), ", counts: ",
        csv_link("jumps"), ".", note=True,
    )  # fmt: skip
    return (table("jumps", "Runs that change beyond a smooth trend", specs, rows.values()), note)


def _window(row: Mapping[str, Any]) -> str:
    return "–" if row["last_step"] is None else f"{whole(row['first_step'])} to {whole(row['last_step'])}"


def _jumps_of(condition: str) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        counts = row[condition]
        if counts is None:
            return "–"
        return f"{whole(counts['n_at_generalisation'])} ({counts['n_beyond_trend']}) of {counts['n_runs']}"

    return Column(condition), write


def _condition_rows(data: GrokkingData) -> list[dict[str, Any]]:
    runs = data.tables["runs"]
    return (
        runs.group_by("architecture", "condition", maintain_order=True)
        .agg(
            pl.len().alias("n_runs"),
            pl.col("memorised", "generalised").is_finite().sum().name.prefix("n_"),
            pl.col("memorised", "generalised").fill_nan(None).median(),
            pl.col("train_accuracy", "validation_accuracy", "train_loss", "validation_loss").mean(),
        )
        .to_dicts()
    )


def run_blocks(data: GrokkingData, _: Sequence[Picture]) -> Iterable[Block | None]:
    """Show when runs memorise and generalise, by condition."""
    specs: tuple[Spec, ...] = (
        text_of("network", "architecture", names_row=True),
        text_of("condition", "condition", names_row=True),
        number_of("runs", "n_runs", whole),
        number_of("memorise", "n_memorised", whole),
        number_of("median step", "memorised", whole),
        number_of("generalise", "n_generalised", whole),
        number_of("median step", "generalised", whole),
        number_of("accuracy, trained on", "train_accuracy", share, group="at the end"),
        number_of("others", "validation_accuracy", share, group="at the end"),
        number_of("loss, trained on", "train_loss", plain, group="at the end"),
        number_of("others", "validation_loss", plain, group="at the end"),
    )
    note = paragraph(
        f"A run has memorised when it is right on {MIN_MEMORISED:.0%} of the pairs trained on, and generalised when it "
        f"is right on {MIN_GENERALISED:.0%} of the others. Runs: ", csv_link("runs"), ", all measurements: ",
        csv_link("features"), ".", note=True,
    )  # fmt: skip
    notes = [paragraph(sentence(text)) for text in left_out(data)]
    return (table("runs", "Runs by condition", specs, _condition_rows(data)), *notes, note)


def _method_blocks(data: GrokkingData, _: Sequence[Picture]) -> Iterable[Block | None]:
    run = data.measured[0].runs[0]
    shares = {condition.name: condition.share for condition in CONDITIONS}
    return (
        paragraph(
            f"The networks add two numbers modulo {data.measured[0].modulus}. They are trained on "
            f"{shares[TREATED.name]:.0%} of all pairs, with too few pairs on {shares['too few pairs']:.0%}, each step "
            "on all of them, by AdamW. All runs have their own initial weights and pairs, whose seeds are derived from "
            f"names such as {run.name!r}. The features are those of the rows of the embedding, a point for each number."
        ),
        details(
            "Features",
            paragraph(
                "H0 and H1 are Vietoris-Rips persistence of the points. What grows with the scale is also divided by "
                "the mean distance of two points. The Fourier share is that of the five largest Fourier modes over the "
                "residues in the variance of the points; the norm is that of the embedding."
            ),
        ),
    )


Section = ReportSection[GrokkingData]
TableMakers = dict[str, Callable[[GrokkingData], pl.DataFrame]]
SIGN_TABLES: TableMakers = {
    "verdicts": lambda data: pl.concat(c.verdicts for c in data.comparisons),
    "differences": lambda data: pl.concat(c.differences for c in data.comparisons),
}
RUN_TABLES: TableMakers = {
    "runs": lambda data: run_table(data.measured),
    "features": lambda data: feature_table(data.measured),
}
SECTIONS: tuple[Section, ...] = (
    Section(
        anchor="signs",
        title="Signs of generalisation",
        tables=SIGN_TABLES,
        charts=(control_charts,),
        blocks=sign_blocks,
        summary=lead,
        notes=left_out,
    ),
    Section(anchor="courses", title="Courses", charts=(course_charts,)),
    Section(
        anchor="jumps",
        title="Jumps beyond a smooth trend",
        tables={"jumps": lambda data: jump_table(data.measured), "changes": lambda data: change_table(data.measured)},
        blocks=_jump_blocks,
    ),
    Section(
        anchor="runs",
        title="Runs",
        tables=RUN_TABLES,
        blocks=run_blocks,
    ),
    Section(anchor="design", title="Design", blocks=_method_blocks),
)


def grokking_page(measured: Sequence[MeasuredRuns]) -> Page[GrokkingData]:
    """Return the page of the experiment."""
    return Page(SECTIONS, GrokkingData(measured, makers_of(SECTIONS)))
