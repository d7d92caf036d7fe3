"""Where spectra and diagrams of hidden states turn, and whether they turn together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from toposcope.extend import (
    Block,
    Column,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    csv_link,
    folded,
    missing,
    named,
    number_of,
    p_value,
    paragraph,
    runs_of,
    table,
    text_of,
    whole,
)
from toposcope_experiments.representation_phases.chart import (
    describe_phases,
    representation_phase_charts,
    rows_of_clouds,
)
from toposcope_experiments.representation_phases.phases import PER_SCALE, representation_phases


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show where spectra and diagrams turn, and whether they turn together."""
    frame = data.tables["representation_phases"]
    rows = [row for row in frame.to_dicts() if row["n_turns"] is not None]
    specs: list[Spec] = [
        (Column("feature", True, names_row=True), lambda row: _named(row["feature"])),
        text_of("run", "run", names_row=True),
        number_of("turns", "n_turns", whole),
        text_of("directions", "directions"),
        *(_turn(i) for i in (1, 2, 3)),
        text_of("phases", "phases", prose=True),
        text_of("turns of the rank it shares", "follows"),
        number_of("by chance", "chance", p_value),
    ]
    found = table("representation-phases", "Turns of spectra and of diagrams", specs, rows)
    note = paragraph(
        "A turn is where a trajectory stops falling and rises, or the reverse, distinguished from noise about a trend "
        "with fewer turns; steps with 95% intervals. A rank that falls, rises and falls again goes through the three "
        "phases of Li et al. 2025. “By chance”: the share of turns placed at random that meet as many turns. All: ",
        csv_link("representation_phases"), ".",
    )  # fmt: skip
    spectral, diagrams = rows_of_clouds(data)
    summary = paragraph(describe_phases(spectral, diagrams)) if len(spectral) else None
    return (*pictures, summary, note if found else None, folded(found, "Turns of spectra and of diagrams"))


def _named(feature: str) -> str:
    per_scale = feature.endswith(PER_SCALE)
    return f"{named(feature.removesuffix(PER_SCALE))}{' / radius' if per_scale else ''}"


def _turn(i: int) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        step, low, high = row[f"turn_{i}"], row[f"turn_{i}_low"], row[f"turn_{i}_high"]
        return "–" if missing(step) else f"{whole(step)} ({whole(low)} to {whole(high)})"

    return Column(("first", "second", "third")[i - 1], True, group="step of the turn"), write


def _finding(data: StudyData) -> str:
    """Count the runs in which a rank of the hidden states turns."""
    ranks = data.tables["representation_phases"].filter(pl.col("n_turns").is_not_null(), kind="spectral")
    turning = ranks.filter(pl.col("n_turns") > 0).get_column("run").n_unique()
    n_runs = ranks.get_column("run").n_unique()
    return f"A rank of the hidden states turns in {runs_of(turning, n_runs)}" if n_runs else ""


SECTION = ReportSection(
    anchor="representation-phases",
    title="Phases of representations",
    position=112,
    tables={"representation_phases": lambda data: representation_phases(data.trajectories)},
    charts=(representation_phase_charts,),
    blocks=_blocks,
    finding=_finding,
)
