"""Which runs stand apart from runs of the same size at equal step, and in what first."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import polars as pl

from toposcope.extend import (
    UNDETERMINED,
    Block,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    counted,
    csv_link,
    examples,
    feature_of,
    interval_of,
    joined,
    named,
    number_of,
    p_value,
    paragraph,
    plain,
    signed,
    table,
    text_of,
    uncapitalised,
    whole,
)
from toposcope.study import Declaration
from toposcope_experiments.outlier_runs.chart import outlier_run_charts
from toposcope_experiments.outlier_runs.outlier_runs import (
    BEFORE,
    LOSS_WITHIN,
    RULE,
    Replicates,
    apart_runs,
    outlier_run_table,
    outlier_standing_table,
    replicate_runs,
)
from toposcope_experiments.outlier_runs.run_rotations import MIN_RUNS

MAX_ROWS = 12  # quantities of a run in the table; the CSV has all


SPECS: tuple[Spec, ...] = (
    text_of("run", "run", names_row=True),
    feature_of(names_row=False),
    text_of("kind", "kind"),
    number_of("first step beyond", "first", whole),
    number_of("farthest", "peak", partial(signed, digits=1), group="distance from the others"),
    interval_of("without any one of them", "peak_low", "peak_high", 1, group="distance from the others"),
    number_of("at step", "peak_step", whole, group="distance from the others"),
    number_of("p, adjusted", "p_adjusted", p_value),
    text_of("and the loss", "timing", prose=True),
)


def declared_settings(declaration: Declaration) -> dict[str, str]:
    """Return, by run, all that was declared of a run that is trained here but its name and seed."""
    return {
        run.name: msgspec.json.encode([run.size, run.corpus, msgspec.structs.replace(run.training, seed=0)]).decode()
        for run in declaration.resolved_runs()
    }


def _replicates(data: StudyData) -> list[Replicates]:
    return replicate_runs(data.trajectories, data.runs, declared_settings(data.declaration))


def _alike(data: StudyData) -> str:
    return "" if _replicates(data) else f"{MIN_RUNS} runs that differ in the seed alone"


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["outlier_runs"]
    if not len(frame):
        return ()
    rows = [row for of_run in apart_runs(frame).values() for row in of_run.head(MAX_ROWS).to_dicts()]
    return (
        paragraph(" ".join(_sentences(frame))),
        paragraph(_honest(frame)),
        *pictures,
        table("outlier-runs", "What sets runs apart from their replicates, the first quantity first", SPECS, rows),
        paragraph(f"Not compared at every step: {unknown}.", note=True) if (unknown := _unknown(frame)) else None,
        paragraph("All: ", csv_link("outlier_runs"), "; step by step: ", csv_link("outlier_standings"), "."),
    )


def _families(frame: pl.DataFrame) -> list[str]:
    return frame.get_column("family").unique(maintain_order=True).to_list()


def _sentences(frame: pl.DataFrame) -> list[str]:
    """Name the runs that stand apart, each with what it is apart in first; then the groups without any."""
    found, without = [], []
    for family in _families(frame):
        of_family = frame.filter(family=family)
        apart = apart_runs(of_family)
        if not apart:
            without.append(of_family)
        for run, rows in apart.items():
            among = f"Among {_members(of_family)} at equal step," if run == next(iter(apart)) else "Among the same runs"
            found.append(f"{among} {run} stands apart: {_course(rows)}.")
    if without:
        groups = [_members(of_family) for of_family in without]
        found.append(f"Among {examples(groups)} at equal step, no run stands apart{_detectable(pl.concat(without))}.")
    return found


def _members(of_family: pl.DataFrame) -> str:
    return f"{of_family.get_column('run').n_unique()} runs of {of_family.item(0, 'family')}"


def _detectable(frame: pl.DataFrame) -> str:
    bands = frame.get_column("band").drop_nans().drop_nulls().unique().to_list()
    if not bands:
        return ": nothing of them can be compared"
    low, high = (f"{end:.0f}" for end in (min(bands), max(bands)))
    needed = low if low == high else f"{low} to {high}"
    return f": it would take a distance of {needed} standard deviations of the others at one step"


def _course(rows: pl.DataFrame) -> str:
    """Say in what a run is apart first, by how much, and how that stands to its loss."""
    first, *_ = rows.to_dicts()
    kinds = rows.get_column("kind").unique(maintain_order=True).to_list()
    if first["first"] is None:
        since = whole(first["since"])
        when = f"in no single step, but in {_name(first)} over the steps from {since} to the last together"
    else:
        when = (
            f"first in {_name(first)}, from step {whole(first['first'])} on "
            f"({plain(abs(first['peak']), 2)} standard deviations of the others at step {whole(first['peak_step'])})"
        )
    return f"{when}; in all in {counted(len(rows), 'quantity', 'quantities')} ({joined(kinds)}){_and_the_loss(rows)}"


def _name(row: Mapping[str, Any]) -> str:
    return uncapitalised(named(row["feature"]))


def _and_the_loss(rows: pl.DataFrame) -> str:
    """Say whether anything sets the run apart before its loss does."""
    losses, others = rows.filter(kind="loss"), rows.filter(pl.col("timing") != "")
    before = [_name(row) for row in others.filter(timing=BEFORE).to_dicts()]
    if before:
        steps = losses.get_column("first").drop_nulls().to_list()
        then = f" (from step {whole(min(steps))} on)" if steps else ""
        return f"; before the loss{then}: {examples(before)}"
    if len(others.filter(timing=LOSS_WITHIN)):
        return "; its loss stays with the others at the first of these steps and is never apart"
    if len(others.filter(timing=UNDETERMINED)):
        return "; whether that is before its loss cannot be told"
    return "; none before the loss" if len(others) else ""


def _honest(frame: pl.DataFrame) -> str:
    """Say what the evidence rests on."""
    least = min(frame.group_by("family").agg(pl.col("run").n_unique()).get_column("run"))
    return (
        "The distance is from the mean of the runs that lie closest together, three quarters of them, in their "
        "standard deviations. p is by rotating the runs, over all runs, steps and quantities together. It takes runs "
        "that differ by chance alone to be normally distributed. Ranks need no such assumption and cannot decide: with "
        f"{least} runs some run is always the most extreme, and one that was named beforehand is so by chance in 1 of "
        f"{least} cases."
    )


def _unknown(frame: pl.DataFrame) -> str:
    """Name the runs that could be compared at fewer steps than most."""
    per_run = frame.group_by("family", "run", maintain_order=True).agg(pl.col("n_steps").max())
    most = per_run.with_columns(most=pl.col("n_steps").max().over("family")).filter(pl.col("n_steps") < pl.col("most"))
    return examples([f"{row['run']} ({row['n_steps']} of {row['most']} steps)" for row in most.to_dicts()])


def _finding(data: StudyData) -> str:
    frame = data.tables["outlier_runs"]
    if not len(frame):
        return ""
    n_apart, total = len(apart_runs(frame)), frame.get_column("run").n_unique()
    apart = "stand apart from their replicates" if n_apart > 1 else "stands apart from its replicates"
    return f"{n_apart or 'None'} of {counted(total, 'run')} {apart}"


def _methods(data: StudyData) -> Iterable[Block | None]:
    if len(data.tables["outlier_runs"]):
        return (paragraph(RULE),)
    return (
        paragraph(
            f"Outlier runs: not looked for; it takes {MIN_RUNS} runs of one size, known not to differ in anything "
            "declared but the seed."
        ),
    )


SECTION = ReportSection(
    anchor="outlier-runs",
    title="Runs that stand apart",
    position=97,
    tables={
        "outlier_runs": lambda m: outlier_run_table(_replicates(m)),
        "outlier_standings": lambda m: outlier_standing_table(_replicates(m)),
    },
    charts=(outlier_run_charts,),
    needs=dict.fromkeys(("outlier_runs", "outlier_standings"), (_alike,)),
    blocks=_blocks,
    finding=_finding,
    summary=lambda m: _sentences(m.tables["outlier_runs"]),
    summary_position=8,
    methods=_methods,
)
