"""The sections of a study's report that hold its evidence; a section without data is none."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.analysis import NP_MEAN
from toposcope.analysis.association import STEP
from toposcope.analysis.wording import joined
from toposcope.report.association import NETWORK, full_table, legend, short_table
from toposcope.report.document import Block, Section, csv, details, say, section
from toposcope.report.headline import named, spoken
from toposcope.report.material import Material
from toposcope.report.states import against_spectra
from toposcope.report.tables import (
    Column,
    Spec,
    Table,
    feature_of,
    headline_rows,
    interval_of,
    missing,
    number_of,
    p_value,
    plain,
    share,
    signed,
    table,
    tenths,
    text_of,
    whole,
    word,
)
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses
from toposcope.report.verdict import VERDICTS, primary

Frames = Mapping[str, pl.DataFrame]
REPRODUCED = {
    "final loss": "Final losses (nats)",
    "correlation": "Correlation with the loss",
    "prediction error": "Errors of predicted final losses (nats)",
    "phases": "Phases (steps)",
    "scaling": "Scaling with the number of parameters",
    "trace": "Values over training",
}
"""Titles of the tables of a publication; others keep their names."""
WITHIN = 2.0
"""Standard deviations within which a value is that of a random matrix."""


def published(material: Material, frames: Frames, *figures: Block | None) -> Section | None:
    """Set what was published beside ours, claim by claim."""
    declared = material.declaration.published
    claims, reproduction = frames.get("claims"), frames.get("reproduction")
    blocks: list[Block | None] = []
    if claims is not None and len(claims):
        blocks += [
            say("Each claim, whether it stands on the runs of this study, and why."),
            table(
                "claims",
                "The claims of the publication",
                (
                    number_of("number", "number", whole),
                    text_of("claim", "claim", names_row=True, prose=True),
                    text_of("verdict", "verdict", prose=True),
                    text_of("why", "why", prose=True),
                ),
                claims.to_dicts(),
            ),
        ]
    blocks += figures
    if reproduction is not None and len(reproduction):
        blocks += [
            say(
                "Beside each published number: ours by the published procedure, and the exact one. The methods say how "
                "they differ and why. All: ", csv("reproduction"), ".",
            ),
            *(_reproduced(str(name), rows) for (name,), rows in reproduction.group_by("table", maintain_order=True)),
        ]  # fmt: skip
    if not any(blocks):
        return None
    if declared and declared.source:
        blocks.insert(0, say(f"Published: {declared.source}.", note=True))
    here = set(material.runs.get_column("run"))
    if declared and (absent := [run for run in declared.runs() if run not in here]):
        blocks.append(say(f"Published of runs that are not in this study: {', '.join(absent)}.", note=True))
    title = "The published study, claim by claim" if claims is not None and len(claims) else "What was published"
    return section("published", title, *blocks)


def _reproduced(name: str, rows: pl.DataFrame) -> Block | None:
    title = REPRODUCED.get(name, name)
    columns: list[Spec] = [(Column("quantity", True, names_row=True), lambda row: named(word(row["quantity"])))]
    if any(rows.get_column("run")):
        columns.append(text_of("run", "run", names_row=True))
    columns += [
        number_of("published", "published", plain),
        number_of("published protocol, here", "published_protocol", plain),
        number_of("exact, here", "exact", plain),
    ]
    if any(rows.get_column("note")):
        columns.append(text_of("note", "note", prose=True))
    return _folded(table(f"reproduced-{name}", title, columns, rows.to_dicts()), title, most=30)


def runs(material: Material, *figures: Block | None) -> Section | None:
    """Show the runs, and how they trained."""
    finals = {t.run: (name, values[-1]) for t in material.analysis.trajectories for name, values in _first(t.targets)}
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
    return section("runs", "The runs", *figures, table("runs", "Runs of the study", specs, rows), note)


def _first(targets: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(targets.items())[:1]


def association(material: Material, frames: Frames, *figures: Block | None) -> Section | None:
    """Show every feature with the loss, and the trend beside it."""
    rows = primary(material.analysis).filter(pl.col("group") == NETWORK)
    short = short_table(rows)
    full = full_table("association", "Association of every feature of the network with the loss", rows)
    if full is None:
        return None
    targets = joined([named(name) for name in rows.get_column("target").unique(maintain_order=True)])
    batch = material.analysis.association.filter(
        pl.col("group") == NETWORK,
        pl.col("target") == "batch_loss",
        ~pl.col("run").is_in(_with_target(rows, "batch_loss")),
    )
    return section(
        "association",
        "Association with the loss",
        *figures,
        say(f"The loss is the {targets}. The numbers after the features' own are what they have to beat."),
        short,
        details(
            f"Every feature of the network, all ten items ({len(full.rows):,} rows; sortable)",
            legend(rows),
            say("Every group of layers and target: ", csv("association"), "."),
            full,
        ),
        details(
            "The same against the loss of the checkpoint's one batch, as published",
            say("The loss of one batch is noise around the trend; noise is smaller against a larger model's fall."),
            _renamed(short_table(batch), "association-batch", "Association with the loss of one batch"),
        )
        if len(batch)
        else None,
        *_comparisons(frames.get("comparisons")),
        *against_spectra(frames),
    )


def _with_target(rows: pl.DataFrame, target: str) -> list[str]:
    return rows.filter(pl.col("target") == target).get_column("run").unique().to_list()


def _renamed(found: Table | None, name: str, caption: str) -> Table | None:
    return None if found is None else Table(name, caption, found.columns, found.rows, found.sortable)


def _comparisons(frame: pl.DataFrame | None) -> list[Block | None]:
    """Ask whether a feature's correlation is stronger than the step's."""
    if frame is None or not len(frame):
        return []
    rows = headline_rows(frame.filter(other=STEP), beside=frame.get_column("other").unique())
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        text_of("compared with", "other"),
        text_of("test", "test"),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high"),
        number_of("p", "p", p_value),
    )
    found = table("comparisons", "Is a feature's correlation with the loss stronger than the step's?", specs, rows)
    if found is None:
        return []
    return [
        details(
            f"Is a feature's correlation stronger than the step's? ({len(found.rows)} comparisons)",
            say(
                "Difference of the absolute values of two correlations that share the loss. Williams' test takes "
                "checkpoints for independent; the block bootstrap does not. All: ", csv("comparisons"), ".",
            ),
            found,
        )
    ]  # fmt: skip


def layers(material: Material, *figures: Block | None) -> Section | None:
    """Set attention against MLP, early against late, role by role."""
    rows = primary(material.analysis).filter(pl.col("group") != NETWORK, pl.col("rho").is_finite())
    groups = {group: place for place, group in enumerate(rows.get_column("group").unique(maintain_order=True))}
    summed = rows.group_by("group", "feature", maintain_order=True).agg(
        n=pl.len(),
        rho=pl.col("rho").median(),
        low=pl.col("rho").min(),
        high=pl.col("rho").max(),
        given=pl.col("rho_given_step").fill_nan(None).median(),
        verdicts=pl.col("verdict"),
    )
    specs = (
        feature_of(),
        text_of("layers", "group", names_row=True),
        number_of("runs", "n", whole),
        number_of("median", "rho", group="rho with the loss, over runs"),
        interval_of("range", "low", "high", group="rho with the loss, over runs"),
        number_of("median", "given", group="given the step"),
        (Column("verdicts", True), lambda row: _counted(row["verdicts"])),
    )
    order = spoken(summed.get_column("feature"))
    shown = sorted(headline_rows(summed), key=lambda row: (order.index(row["feature"]), groups[row["group"]]))
    found = table("layers", "Association with the loss by group of layers", specs, shown)
    folded = details(f"By role, attention against MLP, early against late ({len(shown)} rows)", found)
    note = say("All features of all groups, run by run: ", csv("association"), ".", note=True) if found else None
    return section("layers", "Layer by layer", *figures, folded, note)


def _counted(verdicts: Sequence[str]) -> str:
    counts = {v: verdicts.count(v) for v in (*VERDICTS, *sorted(set(verdicts) - set(VERDICTS)))}
    return ", ".join(f"{verdict} {n}" for verdict, n in counts.items() if n)


def phases(frames: Frames, *figures: Block | None) -> Section | None:
    """Show the published rule, how much it depends on its settings, and change points with a test."""
    rules, points = (headline_rows(frames[name]) if name in frames else [] for name in ("phases", "change_points"))
    rules.sort(key=lambda row: row["feature"] != NP_MEAN)
    largest, diminishing = "largest change", "diminishing returns"
    rule_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "largest_change", whole, group=largest),
        _steps("over settings", "largest_change_first", "largest_change_last", largest),
        number_of("step", "diminishing_returns", whole, group=diminishing),
        _steps("over settings", "diminishing_first", "diminishing_last", diminishing),
        number_of("settings", "n_settings", whole),
        number_of("that agree", "share_same", share),
    )
    point_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "step", whole),
        _steps("95% interval", "low", "high", ""),
        number_of("p", "p_smooth", p_value),
        (Column("a smooth trend explains it", True), lambda row: "yes" if row["explained"] else "no"),
    )
    found = table("phases", "Phases by the published rule", rule_specs, rules)
    told = say(
        "The published rule (moving average of 5 checkpoints, 10% of the peak, 3 in a row) always finds a step of "
        "largest change, whether or not there is a phase. “Over settings” is the range of its answers over windows and "
        "thresholds. All features: ", csv("phases"), ".",
    )  # fmt: skip
    changes = table("change-points", "Change points", point_specs, points)
    tested = say(
        f"Change points by a criterion that weighs fit against their number: {_explained(points)}. All: ",
        csv("change_points"), ".",
    )  # fmt: skip
    return section(
        "phases",
        "Phases and change points",
        *figures,
        told if found else None,
        _folded(found, "Phases by the published rule"),
        tested if changes else None,
        _folded(changes, "Change points"),
    )


def _steps(title: str, low: str, high: str, group: str) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        first, last = row[low], row[high]
        return "–" if missing(first) or missing(last) else f"{whole(first)} to {whole(last)}"

    return Column(title, group=group), write


def _explained(points: Sequence[Mapping[str, Any]]) -> str:
    smooth = sum(bool(row["explained"]) for row in points)
    return f"a smooth trend explains {smooth} of the {len(points)} shown"


def _folded(found: Table | None, title: str, most: int = 12) -> Block | None:
    """Fold a long table away."""
    if found is None or len(found.rows) <= most:
        return found
    return details(f"{title} ({len(found.rows):,} rows)", found)


def scaling(frames: Frames, *figures: Block | None) -> Section | None:
    """Set final values against size."""
    rows = headline_rows(frames["scaling"], "quantity") if "scaling" in frames else []
    specs = (
        feature_of("final value", "quantity"),
        number_of("runs", "n", whole),
        number_of("sizes", "n_sizes", whole),
        number_of("exponent", "exponent", group="power law"),
        interval_of("95% interval", "low", "high", group="power law"),
        number_of("R²", "r_squared", lambda x: signed(x).lstrip("+"), group="power law"),
        number_of("offset", "offset", plain, group="power law and an offset"),
        number_of("exponent", "offset_exponent", group="power law and an offset"),
        number_of("rho", "rho", group="rank correlation with size"),
        number_of("exact p", "p_exact", p_value, group="rank correlation with size"),
    )
    note = say(
        "Least squares of the logarithms; the interval resamples runs. The p-value counts all orders of up to 8 sizes"
        + (f"; {rows[0]['n_sizes']} sizes allow {rows[0]['p_least']:.3f} at best" if rows else "")
        + ". All quantities: ", csv("scaling"), ".", note=True,
    )  # fmt: skip
    found = table("scaling", "Final values against the number of parameters", specs, rows)
    return section("scaling", "Scaling with size", *figures, found, note if found else None)


def references(frames: Frames, *figures: Block | None) -> Section | None:
    """Set layers beside random matrices of the same shapes."""
    frame = frames.get("references")
    if frame is None or not len(frame):
        return section("references", "Beside random matrices", *figures)
    specs = (
        text_of("ensemble", "ensemble", names_row=True),
        text_of("statistic", "statistic", names_row=True),
        number_of("values", "n", whole),
        number_of("median |z|", "first", tenths, group="first checkpoint"),
        number_of(f"within {WITHIN:g} sd", "first_within", share, group="first checkpoint"),
        number_of("median |z|", "last", tenths, group="last checkpoint"),
        number_of(f"within {WITHIN:g} sd", "last_within", share, group="last checkpoint"),
    )
    z = {when: pl.col(f"z_{when}").fill_nan(None).abs() for when in ("first", "last")}
    summed = frame.group_by("ensemble", "statistic", maintain_order=True).agg(
        n=pl.len(),
        **{when: value.median() for when, value in z.items()},
        **{f"{when}_within": (value <= WITHIN).mean() for when, value in z.items()},
    )
    return section(
        "references",
        "Beside random matrices",
        *figures,
        say(
            "z: how many standard deviations a layer lies from random matrices of its shape and scale; every run and "
            "layer is a value. Each: ", csv("references"), ".",
        ),
        table("references", "Layers beside random matrices of their shape", specs, summed.to_dicts()),
    )  # fmt: skip
