"""Published claims on correlations: H0, neural persistence, H1, and whether a larger run shows the same trends."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import ndtr

from toposcope.extend import BEYOND, UNDETERMINED, sign_flip
from toposcope_experiments.published_study.case import (
    EXPLAINED,
    FALLS,
    LEVEL,
    MIN_SIZES,
    STANDS,
    Judgement,
    StudyEvidence,
    explained_by_step,
    listed,
    plain,
    ranging,
    signed,
    target_name,
    trend,
)  # fmt: skip
from toposcope_experiments.published_study.findings import BATCH_LOSS

RANKED = 1.06  # variance of Fisher's z of ranks, times n - 3
MIN_TRACE_STEPS = 3  # checkpoints that a trace needs for its trend to be tested
MAX_EQUAL_DIFFERENCE = 0.05  # largest difference between two rank correlations that count as equally large


def progress(case: StudyEvidence) -> Judgement:
    """Judge whether H0 total is an indicator of progress.

    The claim fails unless the correlation of the exact H0 total has the published sign in all runs and a block
    bootstrap interval without 0 in more than half of them. Then it stands if the correlation is beyond the trend in
    more than half of them, and is explained if the step explains it in more than half. Otherwise it is undecided.
    """
    stated = list(case.published.correlations.get("H0.total", {}).values())
    claim = "H0 total is a robust indicator of progress" + ranging(", rho ", stated)
    rows = list(case.associations("H0.total", case.named).values())
    if not rows or not stated:
        why = "The exact H0 total was not measured, or no correlation of it is declared."
        return Judgement(claim, UNDETERMINED, why)
    beyond = sum(row["verdict"] == BEYOND for row in rows)
    there = sum(row["block_low"] > 0 or row["block_high"] < 0 for row in rows)
    signed = all(np.sign(row["rho"]) == np.sign(stated[0]) for row in rows)
    why = (
        f"The exact H0 total has rho {listed(rows, 'rho')} with the {target_name(case)}; the step has "
        f"{listed(rows, 'rho_step')}. Beyond the trend in {beyond} of {len(rows)} runs."
    )
    if not signed or 2 * there <= len(rows):
        return Judgement(claim, FALLS, why)
    if 2 * beyond > len(rows):
        return Judgement(claim, STANDS, why)
    explained = sum(map(explained_by_step, rows))
    return Judgement(claim, EXPLAINED if 2 * explained > len(rows) else UNDETERMINED, why)


def strengthens(case: StudyEvidence) -> Judgement:
    """Judge whether H0's correlation strengthens with size: `_with_size`, upwards."""
    return Judgement("H0's correlation with the loss strengthens with size", *_with_size(case, "H0.total", +1))


def reverses(case: StudyEvidence) -> Judgement:
    """Judge whether the correlation of mean neural persistence reverses its sign with size.

    The claim fails unless rho with the reference loss has the published signs at the smallest and the largest of at
    least 3 sizes. It is undecided unless both block bootstrap intervals exclude 0. Then it stands if both correlations
    are beyond the trend, and is explained if the step explains each one that is not. Otherwise it is undecided.
    """
    claim = "The correlation of neural persistence with the loss reverses its sign with size"
    stated = case.published.correlations.get("np_mean", {})
    rows = list(case.associations("np_mean", [run for run in case.sizes if run in stated]).values())
    if len(rows) < MIN_SIZES:
        return Judgement(claim, UNDETERMINED, _too_few(rows))
    ends = rows[0], rows[-1]
    blocks = [f"{row['run']} [{signed(row['block_low'])}, {signed(row['block_high'])}]" for row in ends]
    why = (
        f"rho with the {target_name(case)} is {listed(rows, 'rho')} from the smallest to the largest size; "
        f"{' and '.join(blocks)} by blocks; the step has {listed(rows, 'rho_step')}. Verdicts at the ends: "
        f"{', '.join(row['verdict'] for row in ends)}."
    )
    if any(np.sign(row["rho"]) != np.sign(stated[row["run"]]) for row in ends):
        return Judgement(claim, FALLS, why)
    if any(row["block_low"] <= 0 <= row["block_high"] for row in ends):
        return Judgement(claim, UNDETERMINED, why)
    others = [row for row in ends if row["verdict"] != BEYOND]
    if not others:
        return Judgement(claim, STANDS, why)
    return Judgement(claim, EXPLAINED if all(map(explained_by_step, others)) else UNDETERMINED, why)


def weakens(case: StudyEvidence) -> Judgement:
    """Judge whether H1's correlation weakens with size: `_with_size`, downwards."""
    return Judgement("H1's correlation with the loss weakens with size", *_with_size(case, "H1.total", -1))


def holds_elsewhere(case: StudyEvidence) -> Judgement:
    """Judge whether the larger run of the publication shows the same trends."""
    names = ", ".join(case.published.traces)
    claim = f"{names or 'A real model'} shows the same trends"
    courses, as_usual, beyond = [], [], True
    for run, trace in case.published.traces.items():
        for quantity, values in trace.values.items():
            usual, by = _usual_direction(case, quantity)
            if not usual or len(values) < MIN_TRACE_STEPS:
                continue
            rho, _ = trend(trace.steps, values)
            p = sign_flip(np.diff(values))
            as_usual.append((np.sign(values[-1] - values[0]) == usual, p))
            row = case.associated(run, quantity, published=False)
            beyond = beyond and bool(row) and row["verdict"] == BEYOND
            here = f"; measured here, exact: rho with the step {signed(row['rho_with_step'])}" if row else ""
            courses.append(
                f"{quantity} of {run} {_course(trace.steps, values)} (rho with the step {signed(rho)}; p {p:.2g}, of "
                f"its changes); {by}{here}"
            )
    if not courses:
        return Judgement(claim, UNDETERMINED, "No trace, or no correlation of the same quantity, is declared.")
    why = f"{'. '.join(courses)}."
    if any(not usual and len(as_usual) * p / 2 < LEVEL for usual, p in as_usual):
        return Judgement(claim, FALLS, why)
    if not all(usual and p < LEVEL for usual, p in as_usual):
        return Judgement(claim, UNDETERMINED, why)
    return Judgement(claim, STANDS if beyond else EXPLAINED, why)


def _with_size(case: StudyEvidence, quantity: str, direction: int) -> tuple[str, str]:
    """Judge whether |rho| with the reference loss grows (or shrinks) from the smallest to the largest size."""
    rows = list(case.associations(quantity, list(case.sizes)).values())
    if len(rows) < MIN_SIZES:
        return UNDETERMINED, _too_few(rows)
    batch = [case.associated(row["run"], quantity, published=False, target=BATCH_LOSS) for row in rows]
    strength, step = (np.abs([row[name] for row in rows]) for name in ("rho", "rho_step"))
    noisy = np.abs([row.get("rho", np.nan) for row in batch])
    change, step_change, noisy_change = (direction * (v[-1] - v[0]) for v in (strength, step, noisy))
    rank, _ = trend([case.sizes[row["run"]] for row in rows], strength)
    p = fisher_p(strength[0], rows[0]["n_eff"], strength[-1], rows[-1]["n_eff"])
    why = (
        f"From the smallest to the largest size |rho| is {plain(strength)} with the {target_name(case)} "
        f"(the step: {plain(step)}) and {plain(noisy)} with one batch's loss. The ends have "
        f"{rows[0]['n_eff']:.1f} and {rows[-1]['n_eff']:.1f} effective checkpoints, "
    )
    why += f"p {p:.2g} by Fisher's z." if np.isfinite(p) else "too few, or a rho too near 1, for Fisher's z."
    why += _of_one_cloud(case, quantity, [row["run"] for row in rows])
    if not direction * rank > 0 or change <= 0 or change < noisy_change / 2:
        return FALLS, why
    if not p < LEVEL:
        return UNDETERMINED, why
    explained = step_change >= change / 2 and np.median(strength - step) <= MAX_EQUAL_DIFFERENCE
    return EXPLAINED if explained else STANDS, why


def fisher_p(first: float, n_first: float, second: float, n_second: float) -> float:
    """Return the two-sided p of two runs' Spearman correlations being equal, by Fisher's z.

    With the variance 1.06 / (n - 3) of ranks (Fieller, Hartley & Pearson 1957) of the effective numbers of checkpoints;
    NaN where one is 3 or less, or a correlation is 1.
    """
    if min(n_first, n_second) <= 3 or max(abs(first), abs(second)) >= 1:
        return float("nan")
    error = np.sqrt(RANKED / (n_first - 3) + RANKED / (n_second - 3))
    return float(2 * ndtr(-abs(np.arctanh(second) - np.arctanh(first)) / error))


def _of_one_cloud(case: StudyEvidence, quantity: str, runs: Sequence[str]) -> str:
    """Describe |rho| of all layers' rows in one cloud, every row of them and no cap, where that was measured."""
    clouds = [f for f in case.trajectories[runs[0]].features if f.probe == "rips" and f.statistic == quantity]
    options = {str(feature): feature.option_values() for feature in clouds}
    capped = {"threshold", "sample"}
    whole = [name for name, o in options.items() if o.get("pooled") == "true" and not o.keys() & capped]
    rows = [case.association.filter(run=run, feature=whole[0], target=case.target(run)) for run in runs if whole]
    if not rows or not all(map(len, rows)):
        return ""
    return f" In one cloud of all layers' rows it is {plain(np.abs([row.item(0, 'rho') for row in rows]))}."


def _usual_direction(case: StudyEvidence, quantity: str) -> tuple[int, str]:
    """Return +1 if a quantity goes up with the step in most of the small runs, -1 if down, else 0; and by what."""
    stated = {r: rho for r, rho in case.published.correlations.get(quantity, {}).items() if np.isfinite(rho)}
    here = case.associations(quantity, [run for run in stated if run in case.named])
    signs = [np.sign(here[run]["rho_with_step"]) if run in here else -np.sign(rho) for run, rho in stated.items()]
    usual = int(np.sign(sum(signs)))
    measures = [f"their rho with the step {listed(list(here.values()), 'rho_with_step')}"] if here else []
    if len(here) < len(stated):
        measures.append(f"the published rho with the loss of {len(stated) - len(here)}, turned round")
    usually = f"in the small runs it goes mostly {'up' if usual > 0 else 'down'} with the step, by "
    return usual, usually + " and ".join(measures)


def _course(steps: Sequence[int], values: Sequence[float]) -> str:
    """Describe the course of a trace."""
    ends = f"from {values[0]:.3g} to {values[-1]:.3g}"
    changes = [b - a for a, b in pairwise(values)]
    if all(c >= 0 for c in changes) or all(c <= 0 for c in changes):
        return f"{'rises' if values[-1] > values[0] else 'falls'} {ends}, always"
    highest = int(np.argmax(values))
    if 0 < highest < len(values) - 1:
        top = f"{values[highest]:.3g} at step {steps[highest]}"
        return f"rises from {values[0]:.3g} to {top}, then falls to {values[-1]:.3g}"
    return f"goes {ends}, not always the same way"


def _too_few(rows: Sequence[dict[str, Any]]) -> str:
    known = f" rho is {listed(rows, 'rho')}, the step's {listed(rows, 'rho_step')}." if rows else ""
    return f"It takes {MIN_SIZES} sizes; {len(rows)} have an exact correlation.{known}"
