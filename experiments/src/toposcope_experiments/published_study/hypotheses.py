"""The second published study's four hypotheses on hidden states, each judged by the study's own measure of it.

On the exact values of the runs that it names; where none were measured, on the values that it released.
"""

from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import BEYOND, UNDETERMINED, Feature, Vector, adjusted, sign_flip
from toposcope_experiments.published_study import case as rules
from toposcope_experiments.published_study.case import FALLS, LEVEL, STANDS, Judgement, StudyEvidence, signed

CHANGES = {"H1.count": -1, "H1.total": +1}  # how each is published to change in training
TOPOLOGY, SPECTRAL = "H1.entropy", ("effective_rank", "participation_ratio")  # the best, and its baselines
TESTED = ("H1.entropy", "H1.total", "H1.count")  # of which sizes are published to differ
HERE = "of a run that the publication names"


def hypotheses(case: StudyEvidence, turns: pl.DataFrame | None) -> list[Judgement]:
    """Judge the four."""
    claimed = (
        "The topology of hidden states changes systematically in training: fewer loops, of larger total",
        "Models of different size differ in topology at the same step",
        f"Topology ({TOPOLOGY}) goes with the perplexity at least as closely as spectral measures",
        "The topology of hidden states has phases, as their spectra have: H1 total falls, then rises",
    )
    judged = _change(case), _differ(case), _correlate(case), _turn(case, turns)
    return [Judgement(claim, *each) for claim, each in zip(claimed, judged, strict=True)]


def _change(case: StudyEvidence) -> tuple[str, str]:
    moves = {(run, name): np.diff(_values(case, run, name)) for run in case.named for name in CHANGES}
    moves = {place: changes for place, changes in moves.items() if len(changes)}
    if not moves:
        return _not_judged(f"{' or '.join(CHANGES)} {HERE}")
    p = adjusted(np.array([sign_flip(changes) for changes in moves.values()]))
    usual = np.array([np.sign(changes.sum()) == CHANGES[name] for (_, name), changes in moves.items()])
    each = [
        f"{name} of {run} {'as' if u else 'not as'} published, p {q:.2g}"
        for (run, name), u, q in zip(moves, usual, p, strict=True)
    ]
    verdict = FALLS if (~usual & (p < LEVEL)).any() else STANDS if (usual & (p < LEVEL)).all() else UNDETERMINED
    return verdict, f"First against last checkpoint, p of the changes, adjusted: {'; '.join(each)}."


def _differ(case: StudyEvidence) -> tuple[str, str]:
    if (known := len({*case.sizes.values()})) < rules.MIN_SIZES:
        return _not_judged(f"{rules.MIN_SIZES} sizes that the publication names; {known} known")
    names = {str(_feature(case, run, quantity)) for run in case.sizes for quantity in TESTED}
    same_step = len({int(case.trajectories[run].steps[-1]) for run in case.sizes}) == 1
    rows = [r for r in case.scaling.to_dicts() if same_step and r["quantity"] in names and np.isfinite(r["p_exact"])]
    if not rows:
        return _not_judged(f"{', '.join(TESTED)} of these sizes at the same last step")
    p, least = adjusted(np.array([row["p_exact"] for row in rows])).min(), min(row["min_p"] for row in rows)
    each = [f"{row['quantity']} {signed(row['rho'])}" for row in rows]
    why = f"rho with size at the last step: {', '.join(each)}; least adjusted p {p:.2g}, at best {least:.2g}."
    if p < LEVEL:
        return STANDS, why
    return UNDETERMINED if least * len(rows) >= LEVEL else FALLS, why


def _correlate(case: StudyEvidence) -> tuple[str, str]:
    known = {run: [_associated(case, run, name) for name in (TOPOLOGY, *SPECTRAL)] for run in case.named}
    pairs = [(row, max(abs(r["rho"]) for r in rest if r)) for row, *rest in known.values() if row and any(rest)]
    if not pairs:
        return _not_judged(f"a loss, {TOPOLOGY} and {' or '.join(SPECTRAL)} {HERE}")
    each = [f"{r['run']} {signed(r['rho'])} (spectral {s:.3f}, the step {signed(r['rho_step'])})" for r, s in pairs]
    closer = [abs(row["rho"]) >= spectral for row, spectral in pairs]
    explained, beyond = zip(
        *[(rules.explained_by_step(row), row["verdict"] == BEYOND) for row, _ in pairs], strict=True
    )
    ranked = (
        {rules.EXPLAINED: explained, STANDS: beyond} if 2 * sum(closer) > len(pairs) else {FALLS: [True] * len(pairs)}
    )
    verdict = next((name for name, flags in ranked.items() if 2 * sum(flags) > len(pairs)), UNDETERMINED)
    return verdict, f"rho with the loss: {', '.join(each)}."


def _turn(case: StudyEvidence, turns: pl.DataFrame | None) -> tuple[str, str]:
    names = {(run, str(_feature(case, run, "H1.total"))) for run in case.named}
    rows = [] if turns is None else turns.drop_nulls("n_turns").to_dicts()
    rows = [row for row in rows if (row["run"], row["feature"]) in names]
    if not rows:
        return _not_judged(f"the turns of H1.total (representation_phases) {HERE}")
    turned = [row["n_turns"] > 0 and row["p_1"] < LEVEL and row["directions"].startswith("down up") for row in rows]
    each = [f"{row['run']} goes {row['directions']}, p of a first turn {row['p_1']:.2g}" for row in rows]
    return STANDS if 2 * sum(turned) > len(rows) else UNDETERMINED, f"{'; '.join(each)}."


def _not_judged(needed: str) -> tuple[str, str]:
    return UNDETERMINED, f"Not judged: needs {needed}."


def _feature(case: StudyEvidence, run: str, quantity: str) -> Feature | None:
    return case.feature(run, quantity, published=False) or case.feature(run, quantity, published=True)


def _associated(case: StudyEvidence, run: str, quantity: str) -> dict[str, Any]:
    rows = (case.associated(run, quantity, published=flag) for flag in (False, True))
    return next((row for row in rows if row and np.isfinite(row["rho"])), {})


def _values(case: StudyEvidence, run: str, quantity: str) -> Vector:
    feature = _feature(case, run, quantity)
    values = case.trajectories[run].features[feature] if feature else np.empty(0)
    return values[np.isfinite(values)]
