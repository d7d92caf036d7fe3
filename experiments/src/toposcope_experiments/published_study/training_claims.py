"""Published claims on training and size: forecasts with topology, phases, how H0 and the loss scale."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.extend import UNDETERMINED, WEIGHT_NORM, Vector, adjusted, joined, sign_flip
from toposcope_experiments.published_study.case import (
    EXPLAINED,
    FALLS,
    LEVEL,
    MAX_ENUMERATED_ORDERS,
    MIN_SIZES,
    STANDS,
    Judgement,
    StudyEvidence,
    p_of_rho,
    signed,
    trend,
)  # fmt: skip
from toposcope_experiments.published_study.findings import BATCH_LOSS
from toposcope_experiments.published_study.published import Published

MIN_RUNS = 15  # runs that a test needs to show that topology improves predictions
ROUNDING = 1e-9  # of a share: 300 of 5,000 steps and 150 of 2,500 are the same one
GOOD_FIT = 0.95  # least R² of a power law that describes final losses


def improves(case: StudyEvidence) -> Judgement:
    """Judge whether topology improves the prediction of the final loss."""
    claim = "Topology improves the prediction of the final loss"
    fractions = claimed_fractions(case.published)
    if not fractions:
        return Judgement(claim, UNDETERMINED, "No error of the published blend is declared.")
    shares = [_improvement(case.published, fraction) for fraction in fractions]
    if all(shares):
        parts = [f"{100 * share:.1f}% at {fraction:.0%}" for share, fraction in zip(shares, fractions, strict=True)]
        claim += f" by {joined(parts)} of training"
    found = [_gains(case, "exact", fraction) for fraction in fractions]
    if any(len(gain.topology) < 2 for gain in found):
        return Judgement(claim, UNDETERMINED, "Fewer than 2 runs have a forecast with topology.")
    p = [sign_flip(gain.topology) for gain in found]
    gains = [f"at {f:.0%} {gain.text()}, p {q:.2g}" for f, gain, q in zip(fractions, found, p, strict=True)]
    n = min(len(gain.topology) for gain in found)
    why = f"Mean error in nats over {n} runs, {'; '.join(gains)}."
    as_published = [_gains(case, "published", fraction) for fraction in fractions]
    if all(len(gain.topology) for gain in as_published):
        pairs = zip(fractions, as_published, strict=True)
        why += f" Made as published, {'; '.join(f'at {f:.0%} {gain.text()}' for f, gain in pairs)}."
    if all(gain.topology.mean() <= 0 for gain in found) or _excluded(found):
        return Judgement(claim, FALLS, why)
    if n < MIN_RUNS:
        why += f" {n} runs are too few for a test; the least p they allow is {2 / 2**n:.2g}."
        return Judgement(claim, UNDETERMINED, why)
    gained = all(gain.topology.mean() > 0 and gain.blend.mean() > 0 for gain in found)
    return Judgement(claim, STANDS if gained and (adjusted(np.array(p)) < LEVEL).all() else UNDETERMINED, why)


def claimed_fractions(published: Published) -> list[float]:
    """Return the fractions of training at which a publication's blend beat its power law; all of them if none did."""
    fractions = sorted(float(fraction) for fraction in published.prediction_errors.get("combined", {}))
    return [fraction for fraction in fractions if _improvement(published, fraction) > 0] or fractions


def _excluded(found: Sequence["Gain"]) -> bool:
    """Return whether a test finds a loss where a gain is claimed, .05 over all tests."""
    tested = [gain for both in found for gain in (both.topology, both.blend)]
    return any(gain.mean() < 0 and sign_flip(gain) * len(tested) < LEVEL for gain in tested)


def has_phases(case: StudyEvidence) -> Judgement:
    """Judge whether training has phases, which neural persistence shows."""
    published = case.published
    limits = published.shares_of_training(published.largest_change).values()  # whatever the runs here are
    ends = dict.fromkeys(f"{share:.0%}" for share in (min(limits), max(limits))) if limits else ()
    when = f"at {' to '.join(ends)} of training" if limits else "early"
    claim = f"Neural persistence shows phases: the largest change {when}, diminishing returns later in larger models"
    rows = [row for run in case.sizes for row in _of_persistence(case, run, case.phases).head(1).to_dicts()]
    if not published.largest_change:
        return Judgement(claim, UNDETERMINED, "No published step of the largest change is declared to compare with.")
    if not limits:
        why = "Not judged: needs the published length of training (training_steps), of which the steps are a share."
        return Judgement(claim, UNDETERMINED, why)
    if len(rows) < MIN_SIZES:
        return Judgement(claim, UNDETERMINED, f"The phases of {len(rows)} sizes are known; it takes {MIN_SIZES}.")
    found = _shares_here(case, {row["run"]: row["largest_change"] for row in rows})
    within = sum(min(limits) - ROUNDING <= share <= max(limits) + ROUNDING for share in found.values())
    late = {row["run"]: row["diminishing_returns"] for row in rows if row["diminishing_returns"] is not None}
    if len(late) < MIN_SIZES:
        return Judgement(claim, UNDETERMINED, f"Returns diminish by the published rule in {len(late)} sizes only.")
    rho, p = trend([case.sizes[run] for run in late], list(_shares_here(case, late).values()))
    runs = [row["run"] for row in rows]
    found_points = [_of_persistence(case, run, case.change_points) for run in runs]
    smooth = [bool(points.get_column("explained").all()) for points in found_points if len(points)]
    unsteady = sum(row["share_same"] < 0.5 for row in rows)
    why = (
        f"The largest change lies in the published range in {within} of {len(rows)} sizes; diminishing returns begin "
        f"at step {', '.join(str(step) for step in late.values())}: rho with size {signed(rho)}, exact p {p:.2g}. In "
        f"{unsteady} runs most other windows and thresholds give another step; a smooth trend explains every change "
        f"point in {sum(smooth)} of {len(smooth)} runs that have any."
    )
    if 2 * within <= len(rows) or not rho > 0:
        return Judgement(claim, FALLS, why)
    if not p < LEVEL or 2 * unsteady >= len(rows):
        return Judgement(claim, UNDETERMINED, why)
    return Judgement(claim, EXPLAINED if 2 * sum(smooth) > len(rows) else STANDS, why)


def scales(case: StudyEvidence) -> Judgement:
    """Judge whether H0 total scales with the number of parameters.

    The claim fails if the exact H0 total does not increase with size, and is undecided if the exact permutation p is
    .05 or more. Otherwise the weight norm explains it if it orders the sizes equally well; else the claim stands.
    """
    stated = case.published.scaling.get("H0.total")
    claim = "H0 total scales with the number of parameters" + (f" (exponent {stated.exponent:+.3f})" if stated else "")
    law = case.law("H0.total", published=False)
    if not law or law["n_sizes"] < MIN_SIZES:
        return Judgement(claim, UNDETERMINED, f"The exact H0 total of fewer than {MIN_SIZES} sizes is known.")
    norm = case.scaling.filter(quantity=str(WEIGHT_NORM))
    norm_rho = float(norm.item(0, "rho")) if len(norm) else np.nan
    why = (
        f"The exact H0 total goes as N^{signed(law['exponent'])} over {law['n_sizes']} sizes (R² "
        f"{law['r_squared']:.2f}), rho {signed(law['rho'])}, exact p {law['p_exact']:.2g}"
    )
    why += f"; the weight norm has rho {signed(norm_rho)}." if np.isfinite(norm_rho) else "."
    if as_published := case.law("H0.total", published=True):
        why += f" Made as published: rho {signed(as_published['rho'])}, exact p {as_published['p_exact']:.2g}."
    n = len(case.published.correlations.get("H0.total", {}))
    if stated and stated.rho is not None and stated.p is not None and 1 < n <= MAX_ENUMERATED_ORDERS:
        exact = f"the exact p over {n} sizes is {p_of_rho(stated.rho, n):.2g}, not {stated.p:.2g}"
        why += f" Of the published rho {signed(stated.rho)} {exact}."
    if not (law["exponent"] > 0 and law["rho"] > 0):
        return Judgement(claim, FALLS, why)
    if not law["p_exact"] < LEVEL:
        return Judgement(claim, UNDETERMINED, why)
    return Judgement(claim, EXPLAINED if norm_rho >= law["rho"] else STANDS, why)


def is_power_law(case: StudyEvidence) -> Judgement:
    """Judge whether the final loss is a power law of the number of parameters.

    The claim fails if the exponent is not negative or R² is below .95. It is undecided if the exact permutation p is
    .05 or more, or if only losses of single batches are known.
    """
    claim = "The final loss is a power law of the number of parameters"
    law = case.law("loss", published=False)
    if not law or law["n_sizes"] < MIN_SIZES:
        return Judgement(claim, UNDETERMINED, f"The final loss of fewer than {MIN_SIZES} sizes is known.")
    why = (
        f"The final {law['quantity'].replace('_', ' ')} goes as N^{signed(law['exponent'])} over {law['n_sizes']} "
        f"sizes, R² {law['r_squared']:.3f}, exact p {law['p_exact']:.2g}.{_steps_trained(case)}"
    )
    if law["quantity"] == BATCH_LOSS:
        alone = "That is the loss of one batch alone; no other loss is known here."
        return Judgement(claim, UNDETERMINED, f"{why} {alone}")
    if not law["exponent"] < 0 or law["r_squared"] < GOOD_FIT:
        return Judgement(claim, FALLS, why)
    return Judgement(claim, STANDS if law["p_exact"] < LEVEL else UNDETERMINED, why)


class Gain(NamedTuple):
    """Errors that topology saves, by run: over the blend without it, and over the power law alone."""

    topology: Vector
    blend: Vector
    errors: dict[str, float]

    def text(self) -> str:
        """Return the mean errors."""
        names = {"loss_only": "power law", "combined": "with topology"}
        names |= {"combined_without_topology": "with the last loss"}
        return ", ".join(f"{name} {self.errors[f'paper_{key}']:.4f}" for key, name in names.items())


def _gains(case: StudyEvidence, protocol: str, fraction: float) -> Gain:
    names = ["paper_loss_only", "paper_combined", "paper_combined_without_topology"]
    rows = case.predictions.filter(
        pl.col("run").is_in(case.named), pl.col("forecaster").is_in(names), protocol=protocol, fraction=fraction
    )
    by_run: dict[str, dict[str, float]] = {}
    for run, name, error in rows.select("run", "forecaster", "error").iter_rows():
        by_run.setdefault(run, {})[name] = error
    table = np.array([[row[name] for name in names] for row in by_run.values() if len(row) == len(names)])
    table = table.reshape(-1, len(names))
    means = table.mean(axis=0) if len(table) else np.full(len(names), np.nan)
    errors = dict(zip(names, means.tolist(), strict=True))
    return Gain(table[:, 2] - table[:, 1], table[:, 0] - table[:, 1], errors)


def _of_persistence(case: StudyEvidence, run: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a table on the mean neural persistence of a run, exact if that was measured."""
    feature = case.feature(run, "np_mean", published=False) or case.feature(run, "np_mean", published=True)
    return table.filter(run=run, feature=str(feature or ""))


def _shares_here(case: StudyEvidence, steps: Mapping[str, int]) -> dict[str, float]:
    """Return steps of runs of this study as a share of the last step of each."""
    return {run: step / max(float(case.trajectories[run].steps[-1]), 1.0) for run, step in steps.items()}


def _improvement(published: Published, fraction: float) -> float:
    """Return by which share the published blend beat the published power law; 0 if it is not known."""
    alone, blend = (
        {float(seen): error for seen, error in published.prediction_errors.get(name, {}).items()}.get(fraction)
        for name in ("loss_only", "combined")
    )
    return 0.0 if not alone or blend is None else 1 - blend / alone


def _steps_trained(case: StudyEvidence) -> str:
    """Describe for how many steps the runs with a loss were trained, where they differ or not."""
    last = [int(t.steps[-1]) for t in case.trajectories.values() if t.targets and len(t.steps)]
    if not last:
        return ""
    if min(last) == max(last):
        return f" All were trained for {last[0]:,} steps, whatever their size."
    return f" They were trained for {min(last):,} to {max(last):,} steps, which a law of size alone leaves out."
