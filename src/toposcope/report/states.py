"""The sections of a report that are of hidden states: representations, their phases, similarity, sizes, spectra."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from toposcope.analysis.representation_phases import PER_SCALE
from toposcope.analysis.wording import joined
from toposcope.report.document import Block, Section, csv, details, say, section
from toposcope.report.figures.spectra import BLOCKS, Counts, spectral
from toposcope.report.headline import OF_CLOUDS, cloud_named, clouds_of, named, spoken
from toposcope.report.material import Material
from toposcope.report.tables import (
    Column,
    Spec,
    feature_of,
    headline_rows,
    interval_of,
    missing,
    number_of,
    p_value,
    plain,
    signed,
    table,
    text_of,
    whole,
)
from toposcope.study.kinds import feature_named

Frames = Mapping[str, pl.DataFrame]
MOST_ROWS = 30
OTHERWISE = "hidden states (default options)"
"""What a note calls a cloud that has no options to be told apart by."""


def representations(material: Material, *figures: Block | None) -> Section | None:
    """Show hidden states over training and by depth, embeddings, diagrams."""
    clouds = clouds_of(material.analysis.trajectories)
    labels = [label for t in material.analysis.trajectories for label, cloud in t.clouds.items() if label == cloud]
    names = list(dict.fromkeys(map(cloud_named, (*clouds, *labels))))
    others = [OTHERWISE if name == "hidden states" else name for name in names[len(clouds) :]]
    note = (
        f"The figures are of {joined(names[: len(clouds)])}; the tables also hold {joined(others)}." if others else ""
    )
    return section(
        "representations", "Representations", *figures, say(note, note=True) if note and any(figures) else None
    )


def phases(frames: Frames, *figures: Block | None) -> Section | None:
    """Show where spectra and diagrams turn, and whether they turn together."""
    frame = frames.get("representation_phases")
    rows = [] if frame is None else [row for row in frame.to_dicts() if row["n_turns"] is not None]
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
    told = say(
        "A turn is where a trajectory stops falling and rises, or the reverse, told from noise about a trend with "
        "fewer turns; steps with 95% intervals. A rank that falls, rises and falls again goes through the three phases "
        "of Li et al. 2025. “By chance”: the share of turns placed at random that meet as many turns. All: ",
        csv("representation_phases"), ".",
    )  # fmt: skip
    folded = details(f"Turns of spectra and of diagrams ({len(rows)} rows)", found) if len(rows) > 12 else found
    return section("representation-phases", "Phases of representations", *figures, told if found else None, folded)


def _named(feature: str) -> str:
    per_scale = feature.endswith(PER_SCALE)
    return f"{named(feature.removesuffix(PER_SCALE))}{' / radius' if per_scale else ''}"


def _turn(i: int) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        step, low, high = row[f"turn_{i}"], row[f"turn_{i}_low"], row[f"turn_{i}_high"]
        return "–" if missing(step) else f"{whole(step)} ({whole(low)} to {whole(high)})"

    return Column(("first", "second", "third")[i - 1], True, group="step of the turn"), write


def sizes(frames: Frames, *figures: Block | None) -> Section | None:
    """Show features of all sizes at equal step, tokens and loss."""
    frame = frames.get("collapse")
    rows = [] if frame is None or not len(frame) else headline_rows(frame)
    specs = (
        feature_of(),
        text_of("at equal", "by", names_row=True),
        number_of("runs", "n_runs", whole),
        number_of("levels", "n_levels", whole),
        number_of("from", "low", plain, group="levels"),
        number_of("to", "high", plain, group="levels"),
        number_of("spread", "spread", lambda x: signed(x).lstrip("+")),
        number_of("rho", "rho_size", group="rank correlation with size"),
        number_of("p", "p_size", p_value, group="rank correlation with size"),
        number_of("at best", "p_least", p_value, group="rank correlation with size"),
    )
    found = table("collapse", "How far sizes lie apart at equal step, tokens and loss", specs, rows)
    told = say(
        "Spread: the standard deviation over runs at the same level, as a share of that of all matched values; 0 where "
        "the sizes coincide. A p-value counts all orders of the sizes; “at best” is the least that so few allow. All: ",
        csv("collapse"), "; the values themselves: ", csv("matched"), ".",
    )  # fmt: skip
    folded = details(f"At equal step, tokens and loss ({len(rows)} rows)", found) if len(rows) > 12 else found
    return section("sizes", "Across sizes", *figures, told if found else None, folded)


def against_spectra(frames: Frames) -> list[Block | None]:
    """Say whether topology correlates with the loss more strongly than spectral measures of the same states do."""
    frame = frames.get("comparisons")
    rows = spectral(frame) if frame is not None else None
    if rows is None or not len(rows):
        return []
    # The plain measures of a published study tell that its features are of hidden states.
    beside = rows.get_column("other").unique(maintain_order=True).to_list()
    kept = spoken([*rows.get_column("feature"), *beside])
    plainer = [name for name in beside if feature_named(name).statistic in OF_CLOUDS]
    blocks = rows.filter(pl.col("feature").is_in(kept), pl.col("other").is_in(plainer), test=BLOCKS)
    others = rows.filter(pl.col("test") != BLOCKS).pivot("test", index=["run", "feature", "other"], values="p")
    joined_rows = blocks.join(others, on=["run", "feature", "other"], how="left", maintain_order="left")
    specs = (
        feature_of(),
        (Column("compared with", True, names_row=True), lambda row: named(row["other"])),
        text_of("run", "run", names_row=True),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high", group="block bootstrap"),
        number_of("p", "p", p_value, group="block bootstrap"),
        number_of("Williams", "Williams", p_value, group="p, checkpoints independent"),
        number_of("Fisher z", "Fisher z", p_value, group="p, checkpoints independent"),
    )
    shown = headline_rows(joined_rows, beside=beside)
    found = table("spectra", "Topology against spectral measures of the same hidden states", specs, shown)
    return [
        details(
            f"Is topology's correlation stronger than that of spectral measures? ({len(shown)} comparisons)",
            say(Counts.of(rows).told(), " All: ", csv("comparisons"), "."),
            found,
        )
    ]
