"""What a study has shown of its main quantities, in sentences, and the cheapest study that would tell the rest."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from toposcope.analysis.adjustment import MIN_RUNS
from toposcope.analysis.association_verdict import RUNS
from toposcope.analysis.power import cheapest_design
from toposcope.analysis.topology_verdict import (
    BY_COVARIATES,
    BY_STEP,
    EXPLANATIONS,
    FOLLOWS,
    KEPT,
    explanations,
    features_of,
    missing,
)
from toposcope.analysis.trajectory import WEIGHT_NORM
from toposcope.analysis.verdict import BEYOND, NONE, UNDETERMINED
from toposcope.family import FamilyRun
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import measured, primary
from toposcope.report.headline import H0, H1, NP, headline_features, named, uncapitalised
from toposcope.report.study_data import StudyData
from toposcope.study.declaration import Declaration
from toposcope.study.declared_runs import DeclaredRun
from toposcope.wording import capitalised, counted, joined

QUANTITIES = (NP.key, H0.key, H1.key, "rips H0.entropy", str(WEIGHT_NORM), "controls stable_rank")
"""The quantities of the first screen, where the study has them."""
MAX_QUANTITIES = 6
FINER = "finer.toml"
"""In the folder of the report: the declaration of the study that would tell what this one could not."""
SAID = {
    BEYOND: ("says", "say", " more about the loss than the step"),
    FOLLOWS: ("follows", "follow", " the step exactly"),
    KEPT: ("goes", "go", " with the loss given the covariates, but another test fails"),
    BY_STEP: ("goes", "go", " with the loss only as the step does"),
    BY_COVARIATES: ("goes", "go", " with the loss only as the step and the other covariates do"),
    NONE: ("does", "do", " not go with the loss detectably"),
}


def main_quantities(data: StudyData) -> pl.DataFrame:
    """Return the association rows of the main quantities in their order, topology first."""
    rows = measured(primary(data)).filter(pl.col("group") == NETWORK)
    present = features_of(rows)
    named_first = dict.fromkeys([*(q for q in QUANTITIES if q in present), *headline_features(present)])
    controls = features_of(rows.filter(pl.col("kind") != TOPOLOGY))
    chosen = sorted(list(named_first or present)[:MAX_QUANTITIES], key=lambda feature: feature in controls)
    return pl.concat([rows.clear(), *(rows.filter(feature=feature) for feature in chosen)])


def learnt(rows: pl.DataFrame) -> tuple[list[str], list[str]]:
    """Return sentences on what is known of quantities, the most definite first, and the names of the others."""
    found = explanations(rows)
    sentences = []
    for how in EXPLANATIONS[:-1]:
        alike = {name: counts for name, (each, *counts) in found.items() if each == how}
        if alike:
            verb = SAID[how][len(alike) > 1]
            whom = "them" if len(alike) > 1 else "it"
            apart = f", so no data of this kind can tell {whom} from the step" if how == FOLLOWS else ""
            where = _where(list(alike.values()))
            sentences.append(f"{capitalised(_names(alike))} {verb}{SAID[how][2]}{where}{apart}.")
    return sentences, [named(name) for name, (how, *_) in found.items() if how == UNDETERMINED]


def _names(features: Mapping[str, object] | Sequence[str]) -> str:
    return joined([uncapitalised(named(feature).replace(" (control)", "")) for feature in features])


def _where(counts: Sequence[Sequence[int]]) -> str:
    """Say in how many runs, where it is not all."""
    if all(n == of for n, of in counts):
        return ""
    (n, of), *others = counts
    if not others:
        return f" in {n} of {of} runs"
    return " in most runs" if all(2 * n > of for n, of in counts) else " in some runs"


class Proposal(NamedTuple):
    """The cheapest study that would tell: a sentence, the command that runs it, and the declaration it reads."""

    sentence: str
    command: str = ""
    declaration: str = ""


def proposal(data: StudyData) -> Proposal | None:
    """Return what would tell whether topology adds anything; None where nothing that was tried would."""
    return data.once("proposal", lambda: _propose(data))


def _propose(data: StudyData) -> Proposal | None:
    rows = measured(primary(data)).filter(pl.col("verdict") != "constant")
    n_features = max(1, len(rows.unique(["group", "feature"])))
    needs_runs = len(missing(rows, RUNS.untested)) > 0
    design = cheapest_design(data.trajectories, n_features, MIN_RUNS if needs_runs else 1)
    if design is None:
        return None
    runs = f"{counted(design.n_runs, 'run')} of this length and schedule"
    told = f"{runs} with a checkpoint every {counted(design.every, 'step')} would tell"
    declared, place = data.declaration, data.directory
    paths = [series.path for series in declared.series if series.path and not series.live]
    text = ""
    if place is not None and declared.resolved_runs():
        text, paths = _finer(declared, design.n_runs, design.every).to_toml(), [str(place / "report" / FINER)]
    if place is None or not paths:
        return Proposal(f"{told}.")
    return Proposal(f"{told}.", f"toposcope study run {shlex.join(paths)} --out {declared.name}-finer", text)


def _finer(declared: Declaration, n_runs: int, every: int) -> Declaration:
    """Return the declaration with so many runs, whose checkpoints are so many steps apart."""
    replace = msgspec.structs.replace
    runs = [_declared(run) for run in declared.resolved_runs()]
    more = [
        replace(run, name=f"{run.name}-more-{i}", training={**run.training, "seed": 1000 + i})
        for i, run in ((i, runs[i % len(runs)]) for i in range(n_runs - len(runs)))
    ]
    finer = {"checkpoint_every": every, "log_spaced": 0, "checkpoint_fractions": []}
    runs = [replace(run, training=run.training | finer) for run in [*runs, *more]]
    return replace(declared, name=f"{declared.name}-finer", runs=runs, population=None)


def _declared(run: FamilyRun) -> DeclaredRun:
    return DeclaredRun(
        size=run.size,
        name=run.name,
        corpus=msgspec.to_builtins(run.corpus),
        training=msgspec.to_builtins(run.training),
    )
