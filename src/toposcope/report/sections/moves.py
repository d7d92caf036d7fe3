"""What moves over training: the loss, topology of weights and gradients, diagrams; the runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.moves import move_table
from toposcope.analysis.wording import counted, examples
from toposcope.report.charts.betti import betti_charts
from toposcope.report.charts.diagrams import diagram_chart
from toposcope.report.charts.losses import loss_chart
from toposcope.report.charts.rates import change_rate_chart, learning_rate_chart
from toposcope.report.charts.series import direction_of
from toposcope.report.charts.topology import gradient_charts, topology_charts
from toposcope.report.document import Block, Picture, csv, folded, say
from toposcope.report.headline import H0, TRAJECTORIES, named
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    Spec,
    feature_of,
    headline_rows,
    number_of,
    percent,
    plain,
    table,
    text_of,
    whole,
)
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw what moves; list by how much, and the runs with their status and last loss."""
    return (*pictures, *_moved(material), *_runs(material))


def _moved(material: Material) -> Iterable[Block | None]:
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("first", "first", plain),
        number_of("last", "last", plain),
        number_of("change", "change", percent),
        text_of("turn", "turn", group="on the way"),
        number_of("at step", "turn_step", whole, group="on the way"),
        number_of("value", "turn_value", plain, group="on the way"),
    )
    rows = headline_rows(material.tables["moved"])
    caption = "First and last value of each feature"
    return (
        folded(table("moved", caption, specs, rows), caption),
        say("All features: ", csv("moved"), ".", note=True) if rows else None,
    )


def _runs(material: Material) -> Iterable[Block | None]:
    finals = {t.run: (name, values[-1]) for t in material.trajectories for name, values in _first(t.targets)}
    rows = [
        {**row, "target": named(finals.get(row["run"], ("", 0))[0]), "final": finals.get(row["run"], ("", np.nan))[1]}
        for row in material.runs.to_dicts()
    ]
    texts = TextLosses.of(material)
    rows = [{**row, **texts.by_run.get(row["run"], {})} for row in rows]
    specs: list[Spec] = [
        text_of("run", "run", names_row=True),
        text_of("kind", "kind"),
        number_of("parameters", "n_parameters", whole),
        text_of("status", "status"),
        number_of("last step", "last_step", whole),
        number_of("checkpoints", "n_checkpoints", whole),
        number_of("last value", "final", plain, group="loss at the last measured checkpoint"),
        text_of("which", "target", group="loss at the last measured checkpoint"),
        *texts.columns(),
    ]
    note = say(NOT_COMPARABLE, note=True) if texts.tokens_differ else None
    return (table("runs", "Runs of the study", specs, rows), note)


def _first(targets: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(targets.items())[:1]


def _finding(material: Material) -> str:
    """Say where the first of the headline features goes that was measured, H0 total before the others."""
    for headline in sorted(TRAJECTORIES, key=lambda h: h is not H0):
        if any(headline.feature in t.features for t in material.trajectories):
            return f"{headline.name} {direction_of(material.trajectories, headline.feature)}"
    return ""


def _summary(material: Material) -> list[str]:
    """Name the runs that diverged or did not finish, and count what failed."""
    runs, n_errors = material.runs, len(material.errors)
    sentences = []
    for run, step in runs.filter(status="diverged").select("run", "last_step").iter_rows():
        sentences.append(
            f"{run} diverged at step {step}: its loss is not finite there; it is analysed up to that step."
        )
    unfinished = runs.filter(pl.col("status").is_in(["failed", "running"])).get_column("run").to_list()
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
    tables={"runs": lambda material: material.runs, "moved": lambda material: move_table(material.trajectories)},
    charts=(
        loss_chart,
        topology_charts,
        change_rate_chart,
        learning_rate_chart,
        diagram_chart,
        betti_charts,
        gradient_charts,
    ),
    compared_charts=(loss_chart, topology_charts, change_rate_chart),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=40,
)
