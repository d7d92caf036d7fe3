"""The runs that are compared: how they ended, what they were declared with, and how they are grouped."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.trajectory import TEXT_LOSS, Trajectory
from toposcope.family.run import learning_rate
from toposcope.logs import final_training_loss
from toposcope.typing import Indices, Steps, Vector

FINAL_LOSSES = {"validation_loss": "validation loss", TEXT_LOSS: "loss on the text", "loss": "training loss"}
"""Final losses by the name of the loss they are of, the most reliable first."""
TRAINING = ("smoothed_loss", "batch_loss")  # targets of which the log has the final loss
MIN_LOGGED_SHARE = 0.98  # share of a run's steps up to which a loss is known to count as final
MAX_BANDS = 4  # peak learning rates are divided into so many bands
GAP, OTHER_LOSS = "generalisation gap", "loss on other corpora"
OTHER_PREFIX, NATS = "validation_loss_", "nats"  # name and unit of the losses on other corpora among `Study.targets`
NO_SETTINGS = ("run", "size", "seed", "n_parameters")
"""Columns of `Study.population` that are no settings of the training; the number of parameters is known otherwise."""
CONFIGURATIONS, SIZES, RATES, CORPORA = "runs", "sizes", "learning rates", "corpora"
"""What is held out: runs that differ in their seed alone, and all runs of a size, of a band of rates, of a corpus."""


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of one run."""

    steps: Steps  # shape (n,); logged steps, ascending
    training: Vector  # shape (n,); not finite where the run diverged
    others: Vector  # shape (c,); mean loss on other corpora at the run's checkpoints; NaN where unknown


@dataclass(frozen=True, eq=False)
class RunPopulation:
    """Runs, their targets and their groups."""

    runs: list[Trajectory]  # those that ended, or diverged before the end of a known plan
    last_steps: Vector  # shape (n,); planned
    diverged_at: Vector  # shape (n,); step at which the run diverged; NaN for the others
    losses: list[Losses]
    targets: dict[str, Vector]  # shape (n,); by name, the final loss first; NaN where unknown
    declared: dict[str, Vector]  # shape (n,); numbers that are known at the start, by name
    # shape (c,); share of the sum of the declared learning rates that is still to come, at each checkpoint of a run;
    # NaN where no schedule was declared
    rates_left: list[Vector]
    groups: dict[str, Indices]  # shape (n,); by what is held out
    left_out: dict[str, str]  # why, by run


def run_population(
    trajectories: Sequence[Trajectory],
    log: pl.DataFrame,
    runs: pl.DataFrame,
    declared: pl.DataFrame,
    further: pl.DataFrame,
) -> RunPopulation:
    """Choose the runs, and find their targets and groups."""
    rows = {row["run"]: row for row in runs.iter_rows(named=True)}
    plans = {row["run"]: row for row in declared.iter_rows(named=True)} if len(declared) else {}
    logs = _by_run(log)
    members, left_out, ends = [], dict[str, str](), list[tuple[float, float]]()
    for t in trajectories:
        end = _end(t, rows.get(t.run, {}), plans.get(t.run, {}))
        if end is None:
            left_out[t.run] = str(rows.get(t.run, {}).get("status") or "unknown status")
        else:
            members.append(t)
            ends.append(end)
    others = _by_run(_other_losses(further))
    losses = [_losses(t, logs.get(t.run), others.get(t.run)) for t in members]
    last_steps, diverged_at = np.array(ends).reshape(-1, 2).T
    sizes = [rows[t.run].get("n_parameters") for t in members]
    chosen = [plans.get(t.run) for t in members]
    known = [
        {} if np.isfinite(at) else known_final_losses(t, logs.get(t.run, log.clear()))
        for t, at in zip(members, diverged_at, strict=True)
    ]
    return RunPopulation(
        members,
        last_steps,
        diverged_at,
        losses,
        _targets(members, known, losses),
        _declared(chosen, sizes, last_steps),
        [_rates_left(t, plan) for t, plan in zip(members, chosen, strict=True)],
        _groups(members, chosen, sizes),
        left_out,
    )


def _by_run(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(key[0]): part for key, part in frame.partition_by("run", as_dict=True).items()} if len(frame) else {}


def _end(t: Trajectory, row: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the planned last step, and where the run diverged (NaN if it did not); None for a run without an end."""
    last = float(max(int(t.steps[-1]), row.get("last_step") or 0))
    if row.get("status") == "complete":
        return last, np.nan
    if row.get("status") == "diverged" and plan.get("steps"):
        return float(plan["steps"]), float(row["last_step"] or last)
    return None


def _other_losses(further: pl.DataFrame) -> pl.DataFrame:
    if not len(further):
        return further
    chosen = further.filter(pl.col("target").str.starts_with(OTHER_PREFIX), pl.col("unit") == NATS)
    return chosen.group_by("run", "step").agg(pl.col("value").mean()).sort("run", "step")


def _losses(t: Trajectory, log: pl.DataFrame | None, others: pl.DataFrame | None) -> Losses:
    steps, training = np.empty(0, dtype=np.int64), np.empty(0)
    if log is not None:
        rows = log.filter(pl.col("step") > 0).select("step", "loss").drop_nulls().drop_nans().sort("step")
        steps, training = rows.get_column("step").to_numpy(), rows.get_column("loss").to_numpy()
    at = dict(others.select("step", "value").iter_rows()) if others is not None else {}
    return Losses(steps, training, np.array([at.get(step, np.nan) for step in t.steps.tolist()], dtype=np.float64))


def _targets(
    members: Sequence[Trajectory], known: Sequence[Mapping[str, float]], losses: Sequence[Losses]
) -> dict[str, Vector]:
    """Return the final loss that most runs have, its difference from the training loss, and that on other corpora."""
    name = max(FINAL_LOSSES, key=lambda loss: sum(loss in k for k in known))
    final = np.array([k.get(name, np.nan) for k in known])
    training = np.array([k.get("loss", np.nan) for k in known])
    other = np.array([part.others[-1] if k else np.nan for k, part in zip(known, losses, strict=True)])
    targets = {f"final {FINAL_LOSSES[name]}": final, GAP: final - training, OTHER_LOSS: other}
    if name == "loss":
        del targets[GAP]
    return {target: values for target, values in targets.items() if np.isfinite(values).any()} if members else {}


def known_final_losses(t: Trajectory, log: pl.DataFrame) -> dict[str, float]:
    """Return the final losses of a run that are known to its end, by the keys of `FINAL_LOSSES`."""
    logged = log.get_column("step").max() if len(log) else 0
    end = MIN_LOGGED_SHARE * max(int(t.steps[-1]), logged if isinstance(logged, int) else 0, 1)
    finals: dict[str, float] = {}
    for name in ("validation_loss", TEXT_LOSS):
        values = t.targets.get(name, np.empty(0))
        known = np.flatnonzero(np.isfinite(values))
        if len(known) and t.steps[known[-1]] >= end:
            finals[name] = float(values[known[-1]])
    if len(log) and any(name in t.targets for name in TRAINING):
        rows = log.select("step", "loss").sort("step").drop_nulls().filter(pl.col("loss").is_finite())
        if len(rows) and rows.item(-1, "step") >= end:
            finals["loss"] = final_training_loss(*(rows.get_column(name).to_numpy() for name in ("step", "loss")))[0]
    return finals


def _declared(
    plans: Sequence[Mapping[str, Any] | None], sizes: Sequence[int | None], last_steps: Vector
) -> dict[str, Vector]:
    """Return numbers as they are, and of names which one it is."""
    columns = {"n_parameters": np.array([np.nan if n is None else n for n in sizes], dtype=np.float64)}
    columns["steps"] = last_steps
    for name in dict.fromkeys(name for plan in plans if plan for name in plan if name not in NO_SETTINGS):
        values = [plan.get(name) if plan else None for plan in plans]
        if any(isinstance(value, str) for value in values):
            for choice in sorted({str(value) for value in values if value is not None}):
                columns[f"{name} = {choice}"] = np.array([float(value == choice) for value in values])
        else:
            columns[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return columns


def _rates_left(t: Trajectory, plan: Mapping[str, Any] | None) -> Vector:
    if not plan:
        return np.full(len(t.steps), np.nan)
    shape = {"schedule": plan["schedule"], "peak": plan["learning_rate"], "final": plan["final_learning_rate"]}
    lengths = {"warmup_steps": plan["warmup_steps"], "decay_steps": plan["decay_steps"], "total_steps": plan["steps"]}
    rates = np.array([0.0] + [learning_rate(i, **shape, **lengths) for i in range(1, plan["steps"] + 1)])
    so_far = np.cumsum(rates)
    return np.asarray(1 - so_far[np.minimum(t.steps, plan["steps"])] / max(so_far[-1], 1e-300))


def _groups(
    members: Sequence[Trajectory], plans: Sequence[Mapping[str, Any] | None], sizes: Sequence[int | None]
) -> dict[str, Indices]:
    configurations: list[Hashable] = [
        tuple((k, v) for k, v in plan.items() if k not in ("run", "seed")) if plan else t.run
        for t, plan in zip(members, plans, strict=True)
    ]
    rates = np.array([_peak(t, plan) for t, plan in zip(members, plans, strict=True)])
    groups = {CONFIGURATIONS: _numbered(configurations)}
    if None not in sizes:
        groups[SIZES] = _numbered(sizes)
    if np.isfinite(rates).all():
        groups[RATES] = _bands(rates)
    if all(plans):
        groups[CORPORA] = _numbered([plan["corpus"] for plan in plans if plan])
    return {name: g for name, g in groups.items() if name == CONFIGURATIONS or len(np.unique(g)) > 1}


def _peak(t: Trajectory, plan: Mapping[str, Any] | None) -> float:
    if plan:
        return float(plan["learning_rate"])
    rates = t.covariates.get("learning_rate", np.empty(0))
    return float(np.nanmax(rates)) if np.isfinite(rates).any() else np.nan


def _bands(rates: Vector) -> Indices:
    """Return the band of each rate: each rate its own if they are few, else quarters of the runs."""
    distinct = np.unique(rates)
    if len(distinct) <= MAX_BANDS:
        return np.searchsorted(distinct, rates)
    limits = np.quantile(rates, np.arange(1, MAX_BANDS) / MAX_BANDS)
    return _numbered(np.searchsorted(limits, rates, side="right").tolist())


def _numbered(values: Sequence[Hashable]) -> Indices:
    """Return the place of each value among the distinct ones, in their order."""
    places = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return np.array([places[value] for value in values], dtype=np.int64)
