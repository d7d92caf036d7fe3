"""The published study's nine claims, each judged by a rule that can say that it stands.

A claim is judged on the exact values of the runs the publication names, against the target to trust of each run; what
was published, or is made as published, only enters where a rule says so.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.case import (
    FALLS,
    LEVEL,
    SAME_AS_STEP,
    STANDS,
    UNKNOWN,
    Case,
    Judgement,
    listed,
    plain,
    ranging,
    signed,
    target_name,
    trend,
)  # fmt: skip
from toposcope.analysis.comparison import fisher_z
from toposcope.analysis.permutations import FEW_ORDERS, p_of_rho, sign_flip
from toposcope.analysis.reproduction import BATCH_LOSS, options_of
from toposcope.analysis.trajectories import WEIGHT_NORM, Trajectory
from toposcope.study.published import Published

Vector = NDArray[np.float64]

FEWEST_SIZES = 3
FEWEST_RUNS = 15
"""Runs a gain of prediction must hold over before topology is said to add to it (METHODS 9)."""
CLAIMED_FRACTIONS = (0.3, 0.5)
CLOSE = 0.05
"""Two rank correlations that differ by no more are called as large as each other."""
GOOD_FIT = 0.95
"""R² from which a power law is said to describe final losses."""

SCHEMA = {"number": pl.Int64, "claim": pl.String, "verdict": pl.String, "why": pl.String}


def claims(
    published: Published | None,
    association: pl.DataFrame,
    phases: pl.DataFrame,
    change_points: pl.DataFrame,
    scaling: pl.DataFrame,
    trajectories: Sequence[Trajectory],
    runs: pl.DataFrame,
    predictions: pl.DataFrame,
) -> pl.DataFrame:
    """Judge the published claims.

    Parameters
    ----------
    published : Published or None
        None: the table is empty.
    association, phases, change_points, scaling : polars.DataFrame
        Of `Analysis`.
    trajectories : sequence of Trajectory
    runs : polars.DataFrame
        `Study.runs`.
    predictions : polars.DataFrame
        From `toposcope.forecast.paper.predictions`.

    Returns
    -------
    polars.DataFrame
        ``number, claim, verdict, why``; a verdict is one of `toposcope.analysis.case.VERDICTS`. The rule of each is the
        docstring of its function.
    """
    if published is None:
        return pl.DataFrame(schema=SCHEMA)
    known = {t.run: t for t in trajectories}
    named = [run for run in dict.fromkeys([*published.final_loss, *_correlated(published)]) if run in known]
    parameters = dict(runs.select("run", "n_parameters").drop_nulls().iter_rows())
    sizes = dict(sorted(((r, parameters[r]) for r in named if r in parameters), key=lambda pair: pair[1]))
    case = Case(
        association, scaling, known,
        published=published, sizes=sizes, named=[*sizes, *(r for r in named if r not in sizes)],
        phases=phases, change_points=change_points, predictions=predictions,
    )  # fmt: skip
    rows = [(number, *rule(case)) for number, rule in enumerate(RULES, 1)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def progress(case: Case) -> Judgement:
    """Judge whether H0 total is an indicator of progress.

    Stands if the association of the exact H0 total is beyond the trend in more than half of the runs and has the
    published sign in all; the step says the same if it is there (interval by blocks without 0) in more than half.
    """
    stated = list(case.published.correlations.get("H0.total", {}).values())
    claim = "H0 total is a robust indicator of progress" + ranging(", rho ", stated)
    rows = list(case.told("H0.total", case.named).values())
    if not rows or not stated:
        return Judgement(claim, UNKNOWN, "The exact H0 total was not measured, or no correlation of it is declared.")
    beyond = sum(row["verdict"] == "beyond trend" for row in rows)
    there = sum(row["block_low"] > 0 or row["block_high"] < 0 for row in rows)
    signed = all(np.sign(row["rho"]) == np.sign(stated[0]) for row in rows)
    why = (
        f"The exact H0 total has rho {listed(rows, 'rho')} with the {target_name(case)}; the step has "
        f"{listed(rows, 'rho_step')}. Beyond the trend in {beyond} of {len(rows)} runs."
    )
    if not signed or 2 * there <= len(rows):
        return Judgement(claim, FALLS, why)
    return Judgement(claim, STANDS if 2 * beyond > len(rows) else SAME_AS_STEP, why)


def strengthens(case: Case) -> Judgement:
    """Judge whether H0's correlation strengthens with size: `_with_size`, upwards."""
    return Judgement("H0's correlation with the loss strengthens with size", *_with_size(case, "H0.total", +1))


def reverses(case: Case) -> Judgement:
    """Judge whether the correlation of mean neural persistence reverses its sign with size.

    Does not stand unless rho with the target to trust has the published signs at the smallest and the largest of at
    least 3 sizes; cannot be told unless both intervals by blocks leave out 0; the step says the same unless both are
    beyond the trend.
    """
    claim = "The correlation of neural persistence with the loss reverses its sign with size"
    stated = case.published.correlations.get("np_mean", {})
    rows = list(case.told("np_mean", [run for run in case.sizes if run in stated]).values())
    if len(rows) < FEWEST_SIZES:
        return Judgement(claim, UNKNOWN, _too_few(rows))
    ends = rows[0], rows[-1]
    why = f"rho with the {target_name(case)} is {listed(rows, 'rho')} from the smallest to the largest size; " + (
        " and ".join(f"{row['run']} [{signed(row['block_low'])}, {signed(row['block_high'])}]" for row in ends)
        + f" by blocks; the step has {listed(rows, 'rho_step')}. Verdicts at the ends: "
        + ", ".join(row["verdict"] for row in ends)
        + "."
    )
    if any(np.sign(row["rho"]) != np.sign(stated[row["run"]]) for row in ends):
        return Judgement(claim, FALLS, why)
    if any(row["block_low"] <= 0 <= row["block_high"] for row in ends):
        return Judgement(claim, UNKNOWN, why)
    return Judgement(claim, STANDS if all(r["verdict"] == "beyond trend" for r in ends) else SAME_AS_STEP, why)


def weakens(case: Case) -> Judgement:
    """Judge whether H1's correlation weakens with size: `_with_size`, downwards."""
    return Judgement("H1's correlation with the loss weakens with size", *_with_size(case, "H1.total", -1))


def improves(case: Case) -> Judgement:
    """Judge whether topology improves the prediction of the final loss.

    Judged by the paired gain of the published blend over the same blend with the last loss in place of topology, on
    exact losses, at 30% and at 50% of training. Stands if its mean is above 0 and an exact sign-flip test over at least
    15 runs gives p < .05 after Holm, at both; does not stand if the mean is not above 0 at either, or if the blend is
    no better than the power law alone.
    """
    gains = [_improvement(case.published, fraction) for fraction in CLAIMED_FRACTIONS]
    claim = "Topology improves the prediction of the final loss" + (
        f" by {_percent(gains[0])} at 30% and {_percent(gains[1])} at 50% of training" if all(gains) else ""
    )
    found = [_gains(case, "exact", fraction) for fraction in CLAIMED_FRACTIONS]
    if any(len(gain.topology) < 2 for gain in found):
        return Judgement(claim, UNKNOWN, "Fewer than 2 runs have a forecast with topology.")
    p = [sign_flip(gain.topology) for gain in found]
    adjusted = max(max(p), 2 * min(p))  # Holm over two: both are below the level if and only if this is
    told = [f"at {f:.0%} {gain.text()}, p {q:.2g}" for f, gain, q in zip(CLAIMED_FRACTIONS, found, p, strict=True)]
    n = len(found[0].topology)
    why = f"Mean error in nats over {n} runs, {'; '.join(told)}."
    as_published = [_gains(case, "published", fraction) for fraction in CLAIMED_FRACTIONS]
    if all(len(gain.topology) for gain in as_published):
        pairs = zip(CLAIMED_FRACTIONS, as_published, strict=True)
        why += f" Made as published, {'; '.join(f'at {f:.0%} {gain.text()}' for f, gain in pairs)}."
    if any(gain.topology.mean() <= 0 or gain.blend.mean() <= 0 for gain in found):
        return Judgement(claim, FALLS, why)
    if n < FEWEST_RUNS:
        why += f" {n} runs are too few to tell; the least p they allow is {2 / 2**n:.2g}."
    return Judgement(claim, STANDS if adjusted < LEVEL and n >= FEWEST_RUNS else UNKNOWN, why)


def has_phases(case: Case) -> Judgement:
    """Judge whether training has phases, which neural persistence shows.

    Does not stand unless the largest change falls within the published range in more than half of at least 3 sizes,
    and the step of diminishing returns rises with size. Then, the step says the same if a smooth trend explains the
    change points in more than half of the runs; cannot be told if more than half of the settings of the rule give
    another step, in half of the runs or more, or if the rise has an exact p of .05 or more; else it stands.
    """
    limits = _share_of_training(case, case.published.largest_change)
    claim = "Neural persistence shows phases: the largest change" + (
        f" at {' to '.join(dict.fromkeys(f'{share:.0%}' for share in (min(limits), max(limits))))} of training"
        if limits
        else " early"
    )
    claim += ", diminishing returns later in larger models"
    rows = [row for run in case.sizes if (row := _phase_row(case, run))]
    if len(rows) < FEWEST_SIZES or not limits:
        return Judgement(claim, UNKNOWN, f"The phases of {len(rows)} sizes are known; it takes {FEWEST_SIZES}.")
    found = _share_of_training(case, {row["run"]: row["largest_change"] for row in rows})
    within = sum(min(limits) <= share <= max(limits) for share in found)
    late = {row["run"]: row["diminishing_returns"] for row in rows if row["diminishing_returns"] is not None}
    if len(late) < FEWEST_SIZES:
        return Judgement(claim, UNKNOWN, f"Returns diminish by the published rule in {len(late)} sizes only.")
    rho, p = trend([case.sizes[run] for run in late], list(late.values()))
    runs = [row["run"] for row in rows]
    smooth = [bool(points.get_column("explained").all()) for run in runs if len(points := _change_points(case, run))]
    unsteady = sum(row["share_same"] < 0.5 for row in rows)
    why = (
        f"The largest change lies in the published range in {within} of {len(rows)} sizes; diminishing returns begin "
        f"at step {', '.join(str(step) for step in late.values())}: rho with size {signed(rho)}, exact p {p:.2g}. In "
        f"{unsteady} runs most other windows and thresholds give another step; a smooth trend explains every change "
        f"point in {sum(smooth)} of {len(smooth)} runs that have any."
    )
    if 2 * within <= len(rows) or not rho > 0:
        return Judgement(claim, FALLS, why)
    if 2 * sum(smooth) > len(rows):
        return Judgement(claim, SAME_AS_STEP, why)
    return Judgement(claim, UNKNOWN if 2 * unsteady >= len(rows) or not p < LEVEL else STANDS, why)


def scales(case: Case) -> Judgement:
    """Judge whether H0 total scales with the number of parameters.

    Does not stand if the exact H0 total does not rise with size; cannot be told if the exact permutation p is .05 or
    more; a plain quantity says the same (as the step does elsewhere) if the weight norm orders the sizes as well.
    """
    stated = case.published.scaling.get("H0.total")
    claim = "H0 total scales with the number of parameters" + (f" (exponent {stated.exponent:+.3f})" if stated else "")
    law = case.law("H0.total", published=False)
    if not law or law["n_sizes"] < FEWEST_SIZES:
        return Judgement(claim, UNKNOWN, f"The exact H0 total of fewer than {FEWEST_SIZES} sizes is known.")
    norm = case.scaling.filter(quantity=WEIGHT_NORM)
    norm_rho = float(norm.item(0, "rho")) if len(norm) else np.nan
    why = (
        f"The exact H0 total goes as N^{signed(law['exponent'])} over {law['n_sizes']} sizes (R² "
        f"{law['r_squared']:.2f}), rho {signed(law['rho'])}, exact p {law['p_exact']:.2g}"
    )
    why += f"; the weight norm has rho {signed(norm_rho)}." if np.isfinite(norm_rho) else "."
    if as_published := case.law("H0.total", published=True):
        why += f" Made as published: rho {signed(as_published['rho'])}, exact p {as_published['p_exact']:.2g}."
    n = len(case.published.correlations.get("H0.total", {}))
    if stated and stated.rho is not None and stated.p is not None and 1 < n <= FEW_ORDERS:
        why += (
            f" Of the published rho {signed(stated.rho)} the exact p over {n} sizes is {p_of_rho(stated.rho, n):.2g}, "
        )
        why += f"not {stated.p:.2g}."
    if not law["exponent"] > 0:
        return Judgement(claim, FALLS, why)
    if not law["p_exact"] < LEVEL:
        return Judgement(claim, UNKNOWN, why)
    return Judgement(claim, SAME_AS_STEP if norm_rho >= law["rho"] else STANDS, why)


def is_power_law(case: Case) -> Judgement:
    """Judge whether the final loss is a power law of the number of parameters.

    Does not stand if the exponent is not below 0 or R² is below .95; cannot be told if the exact permutation p is .05
    or more.
    """
    claim = "The final loss is a power law of the number of parameters"
    law = case.law("loss", published=False)
    if not law or law["n_sizes"] < FEWEST_SIZES:
        return Judgement(claim, UNKNOWN, f"The final loss of fewer than {FEWEST_SIZES} sizes is known.")
    why = (
        f"The final {target_name(case)} goes as N^{signed(law['exponent'])} over {law['n_sizes']} sizes, R² "
        f"{law['r_squared']:.3f}, exact p {law['p_exact']:.2g}. All were trained for as "
        "many steps, not to their end."
    )
    if not law["exponent"] < 0 or law["r_squared"] < GOOD_FIT:
        return Judgement(claim, FALLS, why)
    return Judgement(claim, STANDS if law["p_exact"] < LEVEL else UNKNOWN, why)


def holds_elsewhere(case: Case) -> Judgement:
    """Judge whether the larger run of the publication shows the same trends.

    It does if each quantity of its trace rises or falls over training, by an exact permutation test, as it does in
    most of the small runs: by the sign of its correlation with the step here, or else by the published one with the
    loss. Does not stand if one goes the other way; cannot be told if one cannot be told from no trend; stands if that
    run was measured here and every quantity is beyond the trend; else the step says the same.
    """
    names = ", ".join(case.published.traces)
    claim = f"{names or 'A real model'} shows the same trends"
    told, opposite, unclear, beyond = [], False, False, True
    for run, trace in case.published.traces.items():
        for quantity, values in trace.values.items():
            usual = _usual_direction(case, quantity)
            if not usual:
                continue
            rho, p = trend(trace.steps, values)
            opposite, unclear = opposite or (p < LEVEL and np.sign(rho) != usual), unclear or not p < LEVEL
            row = case.associated(run, quantity, published=False)
            beyond = beyond and bool(row) and row["verdict"] == "beyond trend"
            told.append(
                f"{quantity} of {run} {_course(trace.steps, values)} (rho with the step {signed(rho)}, exact p "
                f"{p:.2g}); in the small runs it mostly {'rises' if usual > 0 else 'falls'}{_measured(case, run, row)}"
            )
    if not told:
        return Judgement(claim, UNKNOWN, "No trace, or no correlation of the same quantity, is declared.")
    why = f"{'. '.join(told)}."
    if opposite or unclear:
        return Judgement(claim, FALLS if opposite else UNKNOWN, why)
    return Judgement(claim, STANDS if beyond else SAME_AS_STEP, why)


RULES: tuple[Callable[[Case], Judgement], ...] = (
    progress, strengthens, reverses, weakens, improves, has_phases, scales, is_power_law, holds_elsewhere,
)  # fmt: skip


def _with_size(case: Case, quantity: str, direction: int) -> tuple[str, str]:
    """Judge whether |rho| with the target to trust grows (or shrinks) from the smallest to the largest size.

    Does not stand if it does not, or by less than half as much as with one batch's loss: then that loss's noise makes
    the rest. The step says the same if its own |rho| changes by at least half as much, and in most runs is as large to
    within .05. Cannot be told with fewer than 3 sizes, or if Fisher's z with the effective numbers of checkpoints does
    not tell the ends apart.
    """
    rows = list(case.told(quantity, list(case.sizes)).values())
    if len(rows) < FEWEST_SIZES:
        return UNKNOWN, _too_few(rows)
    batch = [case.associated(row["run"], quantity, published=False, target=BATCH_LOSS) for row in rows]
    strength, step = (np.abs([row[name] for row in rows]) for name in ("rho", "rho_step"))
    noisy = np.abs([row.get("rho", np.nan) for row in batch])
    change, step_change, noisy_change = (direction * (v[-1] - v[0]) for v in (strength, step, noisy))
    rank, _ = trend([case.sizes[row["run"]] for row in rows], strength)
    ends = fisher_z(strength[0], rows[0]["n_eff"], strength[-1], rows[-1]["n_eff"])
    why = (
        f"From the smallest to the largest size |rho| is {plain(strength)} with the {target_name(case)} "
        f"(the step: {plain(step)}) and {plain(noisy)} with one batch's loss. The ends have "
        f"{rows[0]['n_eff']:.1f} and {rows[-1]['n_eff']:.1f} effective checkpoints, "
    )
    why += f"p {ends.p:.2g} by Fisher's z." if np.isfinite(ends.p) else "too few, or a rho too near 1, for Fisher's z."
    why += _of_one_cloud(case, quantity, [row["run"] for row in rows])
    if not direction * rank > 0 or change <= 0 or change < noisy_change / 2:
        return FALLS, why
    if step_change >= change / 2 and np.median(strength - step) <= CLOSE:
        return SAME_AS_STEP, why
    return (STANDS if ends.p < LEVEL else UNKNOWN), why


def _of_one_cloud(case: Case, quantity: str, runs: Sequence[str]) -> str:
    """Tell |rho| of all layers' rows in one cloud, every row of them and no cap, where that was measured."""
    names = [name for name in case.trajectories[runs[0]].features if name.endswith(f" {quantity}")]
    options = {name: options_of(name.rpartition(" ")[0]) for name in names if name.startswith("rips:")}
    whole = [
        name for name, o in options.items() if o.get("pooled") == "true" and not o.keys() & {"threshold", "sample"}
    ]
    rows = [case.association.filter(run=run, feature=whole[0], target=case.target(run)) for run in runs if whole]
    if not rows or not all(map(len, rows)):
        return ""
    return f" In one cloud of all layers' rows it is {plain(np.abs([row.item(0, 'rho') for row in rows]))}."


class Gain(NamedTuple):
    """Errors that topology saves, by run: over the blend without it, and over the power law alone."""

    topology: Vector
    blend: Vector
    errors: dict[str, float]

    def text(self) -> str:
        """Return the mean errors."""
        names = {
            "loss_only": "power law",
            "combined": "with topology",
            "combined_without_topology": "with the last loss",
        }
        return ", ".join(f"{name} {self.errors[f'paper_{key}']:.3f}" for key, name in names.items())


def _gains(case: Case, protocol: str, fraction: float) -> Gain:
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


def _correlated(published: Published) -> list[str]:
    return [run for by_run in published.correlations.values() for run in by_run]


def _improvement(published: Published, fraction: float) -> float:
    """Return by which share the published blend beat the published power law; 0 if it is not known."""
    errors = [published.prediction_errors.get(name, {}).get(f"{fraction:g}") for name in ("loss_only", "combined")]
    return 0.0 if errors[0] is None or errors[1] is None else 1 - errors[1] / errors[0]


def _phase_row(case: Case, run: str) -> dict[str, Any]:
    feature = case.feature(run, "np_mean", published=False) or case.feature(run, "np_mean", published=True)
    rows = case.phases.filter(run=run, feature=feature)
    return rows.row(0, named=True) if len(rows) else {}


def _change_points(case: Case, run: str) -> pl.DataFrame:
    feature = case.feature(run, "np_mean", published=False) or case.feature(run, "np_mean", published=True)
    return case.change_points.filter(run=run, feature=feature)


def _share_of_training(case: Case, steps: Mapping[str, int | None]) -> list[float]:
    """Return steps as a share of the last one of their run."""
    ends = {run: float(case.trajectories[run].steps[-1]) for run in steps if run in case.trajectories}
    return [step / ends[run] for run, step in steps.items() if step is not None and ends.get(run)]


def _usual_direction(case: Case, quantity: str) -> int:
    """Return +1 if a quantity rises over training in most of the small runs, -1 if it falls, 0 if that is not known."""
    stated = {r: rho for r, rho in case.published.correlations.get(quantity, {}).items() if np.isfinite(rho)}
    here = case.told(quantity, [run for run in stated if run in case.named])
    signs = [np.sign(here[run]["rho_with_step"]) if run in here else -np.sign(rho) for run, rho in stated.items()]
    return int(np.sign(sum(signs)))


def _course(steps: Sequence[int], values: Sequence[float]) -> str:
    """Tell how a trace goes."""
    ends = f"from {values[0]:.3g} to {values[-1]:.3g}"
    changes = [b - a for a, b in pairwise(values)]
    if all(c >= 0 for c in changes) or all(c <= 0 for c in changes):
        return f"{'rises' if values[-1] > values[0] else 'falls'} {ends}, always"
    highest = int(np.argmax(values))
    if 0 < highest < len(values) - 1:
        return f"rises from {values[0]:.3g} to {values[highest]:.3g} at step {steps[highest]}, then {values[-1]:.3g}"
    return f"goes {ends}, not always the same way"


def _measured(case: Case, run: str, row: dict[str, Any]) -> str:
    return f"; measured here, exact: rho with the step {signed(row['rho_with_step'])}" if row else ""


def _too_few(rows: Sequence[dict[str, Any]]) -> str:
    told = f" rho is {listed(rows, 'rho')}, the step's {listed(rows, 'rho_step')}." if rows else ""
    return f"It takes {FEWEST_SIZES} sizes; {len(rows)} have an exact correlation.{told}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
