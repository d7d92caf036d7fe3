"""The second published study's four hypotheses on hidden states, each judged by the study's own measure of it.

On the exact values of the runs that it names; where none were measured, on the values that it released.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import BEYOND, UNDETERMINED, adjusted, sign_flip
from toposcope_experiments.published_study.case import (
    EXPLAINED,
    FALLS,
    LEVEL,
    MIN_SIZES,
    STANDS,
    Judgement,
    StudyEvidence,
    explained_by_step,
    signed,
)

CHANGES = {"H1.count": -1, "H1.total": +1}  # how each is published to change in training
TOPOLOGY, SPECTRAL = "H1.entropy", ("effective_rank", "participation_ratio")  # the best, and its baselines
TESTED = ("H1.entropy", "H1.total", "H1.count")  # of which sizes are published to differ


def hypotheses(case: StudyEvidence, collapse: pl.DataFrame | None, turns: pl.DataFrame | None) -> list[Judgement]:
    """Judge the four."""
    return [_change(case), _differ(case, collapse), _correlate(case), _turn(case, turns)]


def _change(case: StudyEvidence) -> Judgement:
    claim = "The topology of hidden states changes systematically in training: fewer loops, of larger total"
    found = [
        (run, quantity, np.sign(values[-1] - values[0]) == direction, sign_flip(np.diff(values)))
        for run in case.named
        for quantity, direction in CHANGES.items()
        for values in _values(case, run, quantity)
    ]
    if not found:
        return _not_judged(claim, "H1.count or H1.total of a run that the publication names")
    p = adjusted(np.array([each[-1] for each in found]))
    each = [f"{q} of {run} {'as' if usual else 'not as'} published, p {one:.2g}"
            for (run, q, usual, _), one in zip(found, p, strict=True)]  # fmt: skip
    why = f"First against last checkpoint, p of the changes, adjusted: {'; '.join(each)}."
    if any(not usual and one < LEVEL for (*_, usual, _), one in zip(found, p, strict=True)):
        return Judgement(claim, FALLS, why)
    return Judgement(claim, STANDS if all(usual for *_, usual, _ in found) and (p < LEVEL).all() else UNDETERMINED, why)


def _differ(case: StudyEvidence, collapse: pl.DataFrame | None) -> Judgement:
    claim = "Models of different size differ in topology at the same step"
    if len(set(case.sizes.values())) < MIN_SIZES:
        return _not_judged(
            claim, f"{MIN_SIZES} sizes that the publication names; {len(set(case.sizes.values()))} known"
        )
    names = {str(_feature(case, run, quantity)) for run in case.sizes for quantity in TESTED}
    rows = pl.DataFrame() if collapse is None else collapse
    if len(rows):
        rows = rows.filter(pl.col("feature").is_in(names), pl.col("p_size").is_finite())
    if not len(steps := rows.filter(by="step") if len(rows) else rows):
        return _not_judged(claim, f"{', '.join(TESTED)} of these sizes at equal step")
    p = adjusted(steps["p_size"].to_numpy())
    each = [f"{f} {signed(rho)}" for f, rho in steps.select("feature", "rho_size").iter_rows()]
    least = float(steps["p_least"].to_numpy().min())
    why = f"rho with size at equal step: {', '.join(each)}; least adjusted p {p.min():.2g}, at best {least:.2g}."
    if not p.min() < LEVEL:
        return Judgement(claim, UNDETERMINED if least * len(p) >= LEVEL else FALLS, why)
    at_loss = rows.filter(by="loss")["p_size"].to_numpy()
    return Judgement(claim, EXPLAINED if len(at_loss) and at_loss.min() >= LEVEL else STANDS, why)


def _correlate(case: StudyEvidence) -> Judgement:
    claim = f"Topology ({TOPOLOGY}) goes with the perplexity at least as closely as spectral measures"
    rows = [
        (row, max((abs(other["rho"]) for name in SPECTRAL if (other := _associated(case, run, name))), default=np.nan))
        for run in case.named
        if (row := _associated(case, run, TOPOLOGY))
    ]
    rows = [(row, other) for row, other in rows if np.isfinite(other)]
    if not rows:
        return _not_judged(
            claim, f"a loss, {TOPOLOGY}, and {' or '.join(SPECTRAL)} of a run that the publication names"
        )
    each = [f"{row['run']} {signed(row['rho'])} (spectral at most {other:.3f}, the step {signed(row['rho_step'])})"
            for row, other in rows]  # fmt: skip
    why = f"rho with the loss: {', '.join(each)}."
    closer, explained = (
        2 * sum(flags) > len(rows)
        for flags in ([abs(row["rho"]) >= other for row, other in rows], [explained_by_step(row) for row, _ in rows])
    )
    if not closer:
        return Judgement(claim, FALLS, why)
    if explained:
        return Judgement(claim, EXPLAINED, why)
    beyond = 2 * sum(row["verdict"] == BEYOND for row, _ in rows) > len(rows)
    return Judgement(claim, STANDS if beyond else UNDETERMINED, why)


def _turn(case: StudyEvidence, turns: pl.DataFrame | None) -> Judgement:
    claim = "The topology of hidden states has phases, as their spectra have: H1 total falls, then rises"
    names = [(run, str(_feature(case, run, "H1.total"))) for run in case.named]
    found = [row for run, name in names if turns is not None for row in turns.filter(run=run, feature=name).to_dicts()]
    found = [row for row in found if row["n_turns"] is not None]
    if not found:
        return _not_judged(claim, "the turns of H1.total (representation_phases) of a run that the publication names")
    turned = [bool(row["n_turns"]) and row["p_1"] < LEVEL and row["directions"].startswith("down up") for row in found]
    each = [f"{row['run']} goes {row['directions']}, p of a first turn {row['p_1']:.2g}" for row in found]
    return Judgement(claim, STANDS if 2 * sum(turned) > len(found) else UNDETERMINED, f"{'; '.join(each)}.")


def _not_judged(claim: str, needed: str) -> Judgement:
    return Judgement(claim, UNDETERMINED, f"Not judged: needs {needed}.")


def _feature(case: StudyEvidence, run: str, quantity: str) -> Any:
    return case.feature(run, quantity, published=False) or case.feature(run, quantity, published=True)


def _associated(case: StudyEvidence, run: str, quantity: str) -> dict[str, Any]:
    rows = (case.associated(run, quantity, published=flag) for flag in (False, True))
    return next((row for row in rows if row and np.isfinite(row["rho"])), {})


def _values(case: StudyEvidence, run: str, quantity: str) -> Iterator[Any]:
    """Yield the known values of a quantity of a run over training, if there are two at least."""
    feature = _feature(case, run, quantity)
    values = case.trajectories[run].features[feature] if feature else np.empty(0)
    known = values[np.isfinite(values)]
    if len(known) > 1:
        yield known
