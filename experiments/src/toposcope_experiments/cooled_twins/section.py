"""Association with the cooled loss, of features of raw and of merged weights."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import (
    LEVEL,
    NP,
    TOPOLOGY,
    WEIGHT_NORM,
    Block,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    adjusted,
    counted,
    feature_named,
    feature_of,
    folded,
    linked,
    named,
    number_of,
    numbers,
    p_value,
    paragraph,
    sign_flip,
    table,
    text_of,
    uncapitalised,
    whole,
)
from toposcope_experiments.cooled_twins.association import cooled_phase_table, cooled_table
from toposcope_experiments.cooled_twins.real_cooldowns import LOSS, real_cool_downs, real_table, stand_in_table
from toposcope_experiments.cooled_twins.twins import trajectories_of_twins

SHOWN = {(feature.probe, feature.statistic) for feature in (NP.feature, feature_named("rips H0.total"), WEIGHT_NORM)}
COMPARED = "rho_given_step"
MIN_RUNS = 6  # flipped signs of fewer differences have no p below .05


def shown(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the loss and of the few features that the section is about."""
    features = (feature_named(row["feature"]) if row["kind"] != LOSS else None for row in frame.to_dicts())
    places = [feature is None or (feature.probe, feature.statistic) in SHOWN for feature in features]
    return frame.filter(pl.Series(places, dtype=pl.Boolean)).to_dicts()


def compared(frame: pl.DataFrame) -> pl.DataFrame:
    """Compare, for each feature over the runs, how strongly raw and merged weights go with the cooled loss.

    Returns
    -------
    polars.DataFrame
        ``feature, kind, runs``; the medians of the absolute partial correlation given the step, ``raw`` and ``cooled``;
        ``more``, the runs where that of merged weights is larger; and ``p`` by flipping the signs of the differences.
    """
    strengths = frame.filter(pl.col("kind") != LOSS).with_columns(
        # not defined where the step determines the feature, which then says nothing beyond it
        raw=pl.col(f"{COMPARED}_raw").abs().fill_nan(0.0),
        cooled=pl.col(f"{COMPARED}_cooled").abs().fill_nan(0.0),
    )
    known = strengths.filter(pl.col("rho_raw").is_finite() & pl.col("rho_cooled").is_finite())
    rows = []
    for (feature, kind), of in known.group_by("feature", "kind", maintain_order=True):
        differences = (of["cooled"] - of["raw"]).to_numpy()
        medians = float(np.median(of["raw"])), float(np.median(of["cooled"]))
        rows.append((feature, kind, len(of), *medians, int((differences > 0).sum()), sign_flip(differences)))
    texts = dict.fromkeys(("feature", "kind"), pl.String)
    floats = dict.fromkeys(("raw", "cooled"), pl.Float64)
    schema = {**texts, "runs": pl.Int64, **floats, "more": pl.Int64, "p": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _sentences(frame: pl.DataFrame) -> Iterable[str]:
    for row in shown(compared(frame)):
        yield (
            f"Given the step, {uncapitalised(named(row['feature']))} of merged weights goes with the cooled loss at "
            f"|ρ| {row['cooled']:.2f} and that of raw weights at {row['raw']:.2f}, medians over "
            f"{counted(row['runs'], 'run')}; merged weights say more in {row['more']} of them "
            f"(p = {p_value(row['p'])})."
        )


def _blocks(data: StudyData, _: Sequence[Picture]) -> Iterable[Block | None]:
    frame = data.tables["cooled"]
    if not len(frame):
        return ()
    specs: list[Spec] = [text_of("run", "run", names_row=True), feature_of(), number_of("checkpoints", "n", whole)]
    for side, group in (("raw", "raw weights"), ("cooled", "merged weights")):
        names = {"ρ": "rho", "given the step": "rho_given_step", "of changes": "rho_differences_given_step"}
        specs += numbers(group, signed={title: f"{name}_{side}" for title, name in names.items()})
    return (
        paragraph(
            "The cooled loss is that of the average of the checkpoints of the last tenth of the steps, which stands "
            "for a cool-down over them. It is set against features of raw and of merged weights at the same "
            "checkpoints; neighbouring averages share checkpoints, so that their numbers are far from independent."
        ),
        *(paragraph(each) for each in _sentences(frame)),
        folded(
            table("cooled", "Association with the cooled loss", specs, shown(frame)), "Association with the cooled loss"
        ),
        linked("All: cooled.csv; phases of both: cooled_phases.csv.", note=True),
        *_real_blocks(data),
    )


def _real_blocks(data: StudyData) -> list[Block | None]:
    """Show the real cool-downs that the study has, beside the merged weights."""
    frame = data.tables["stand_ins"]
    if not len(frame):
        return []
    n_runs, n = (data.tables["real_cooldowns"][name].n_unique() for name in ("run", "cooled_run"))
    specs: list[Spec] = [
        feature_of(),
        *numbers("before the cool-down", signed={"change off": "off", "r": "r"}),
        *numbers("in its place", signed={"change off": "off_end", "r": "r_end"}),
    ]
    for side in ("raw", "merged"):
        for title, given in (("ρ", ""), ("ρ given the last loss", "_given")):
            columns = {"signed": {title: f"rho_{side}{given}"}, "p_value": {"p": f"p_{side}{given}"}}
            specs += numbers(f"{side} weights and the loss after it", **columns)
    return [
        paragraph(
            f"Beside {counted(n, 'real cool-down')} of {counted(n_runs, 'run')}: how far merged weights are from "
            "cooled ones, as a share of how far raw ones are (median), and the correlation of the two changes; then "
            "how the quantity before the cool-down goes with the loss after it, across runs of one size and start."
        ),
        table("stand-ins", "Merged weights and really cooled ones", specs, shown(frame)),
        linked("All: stand_ins.csv; by cool-down: real_cooldowns.csv.", note=True),
    ]


def _finding(data: StudyData) -> str:
    frame = data.tables["cooled"]
    rows = compared(frame).filter(kind=TOPOLOGY) if len(frame) else frame
    if not len(rows):
        return ""
    n_runs = int(rows["runs"].max())  # type: ignore[arg-type]
    if n_runs < MIN_RUNS:
        too_few = "is too little" if n_runs == 1 else "are too few"
        return f"{counted(n_runs, 'run')} {too_few} to tell whether merged weights say more of it than raw ones"
    p = adjusted(rows["p"].to_numpy())
    more = int(((rows["cooled"] > rows["raw"]).to_numpy() & (p < LEVEL)).sum())
    return f"{more or 'None'} of {len(rows)} topological features say more of it in merged weights than in raw ones"


def _twins(data: StudyData) -> list[Trajectory]:
    return data.once("cooled twins", lambda: trajectories_of_twins(data.directory))


def _association(data: StudyData) -> pl.DataFrame:
    return cooled_table(data.trajectories, twins) if (twins := _twins(data)) else pl.DataFrame()


def _phases(data: StudyData) -> pl.DataFrame:
    return cooled_phase_table(data.trajectories, twins) if (twins := _twins(data)) else pl.DataFrame()


def _real(data: StudyData) -> pl.DataFrame:
    if not (twins := _twins(data)):
        return pl.DataFrame()
    return real_table(real_cool_downs(data.declaration.resolved_runs()), data.trajectories, twins)


def _stand_ins(data: StudyData) -> pl.DataFrame:
    return stand_in_table(data.tables["real_cooldowns"]) if _twins(data) else pl.DataFrame()


SECTION = ReportSection(
    anchor="cooled",
    title="The cooled loss",
    position=92,
    tables={"cooled": _association, "cooled_phases": _phases, "real_cooldowns": _real, "stand_ins": _stand_ins},
    needs={"cooled": (lambda data: "" if _twins(data) else "cooled twins of its runs: toposcope study cool DIR",)},
    blocks=_blocks,
    finding=_finding,
)
