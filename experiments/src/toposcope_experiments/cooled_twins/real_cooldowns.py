"""Real cool-downs of the runs of a study, beside the merged weights that stand for them.

A run of the study is a real cool-down of another if it is declared alike, but for a decay of the rate that begins while
the other still holds it: up to there, both are the same run.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import Vector, correlate_across_runs
from toposcope.family import FamilyRun

LOSS = "loss"
SCHEMA = {
    **dict.fromkeys(("run", "cooled_run"), pl.String),
    **dict.fromkeys(("n_parameters", "start", "end"), pl.Int64),
    "learning_rate": pl.Float64,
    **dict.fromkeys(("feature", "kind"), pl.String),
    **dict.fromkeys(("raw", "merged", "held", "merged_end", "real"), pl.Float64),
}
ENDS = (
    *("steps", "schedule", "decay_steps", "final_learning_rate"),
    *("checkpoint_every", "log_spaced", "checkpoint_fractions"),
)
"""Options of the training in which a run and its cool-down differ."""
MIN_COOL_DOWNS = 3  # over which a correlation is defined


class RealCoolDown(NamedTuple):
    """A run, one that cools it down, and the first and last step of that."""

    run: FamilyRun
    cooled: FamilyRun
    start: int
    end: int


def real_cool_downs(runs: Sequence[FamilyRun]) -> list[RealCoolDown]:
    """Return the real cool-downs among the runs of a study."""
    held = {_without_end(run): run for run in runs if run.training.schedule == "constant"}
    found = []
    for cooled in runs:
        training = cooled.training
        run = held.get(_without_end(cooled))
        start = training.steps - training.decay_steps
        if training.schedule == "wsd" and run is not None and start <= run.training.steps:
            found.append(RealCoolDown(run, cooled, start, training.steps))
    return found


def _without_end(run: FamilyRun) -> bytes:
    """Return what two runs have in common that differ in their names, their ends and their checkpoints."""
    training = {name: v for name, v in msgspec.structs.asdict(run.training).items() if name not in ENDS}
    return msgspec.json.encode([run.size, run.corpus, training])


def real_table(found: Sequence[RealCoolDown], runs: Sequence[Trajectory], twins: Sequence[Trajectory]) -> pl.DataFrame:
    """Return the loss and the features of raw, merged and really cooled weights.

    Returns
    -------
    polars.DataFrame
        ``run, cooled_run, n_parameters, start, end, learning_rate, feature, kind``; then the value of the weights
        ``raw`` at the start of the cool-down, ``merged`` over the last tenth of the steps before it, ``held`` at its
        end had it not begun, ``merged_end`` over the last tenth of the steps of these, and ``real`` at its end. NaN
        where not measured; without any, no row.
    """
    by_run, by_twin = ({t.run: t for t in of} for of in (runs, twins))
    rows: list[tuple[object, ...]] = []
    for each in found:
        run, twin, cooled = by_run.get(each.run.name), by_twin.get(each.run.name), by_run.get(each.cooled.name)
        if run is None or twin is None or cooled is None or cooled.steps[-1] != each.end:
            continue
        places = [(run, each.start), (twin, each.start), (run, each.end), (twin, each.end), (cooled, each.end)]
        columns = [_values(t, step) for t, step in places]
        about = (run.run, cooled.run, each.run.size.n_parameters, each.start, each.end, each.run.training.learning_rate)
        kinds = {LOSS: LOSS} | {str(feature): str(feature.kind) for feature in run.features}
        for name, kind in kinds.items():
            rows.append((*about, name, kind, *(column.get(name, np.nan) for column in columns)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _values(run: Trajectory, step: int) -> Mapping[str, float]:
    """Return the loss and the features of a run at a step."""
    at = np.flatnonzero(run.steps == step)
    if not len(at):
        return {}
    loss = {LOSS: float(next(iter(run.targets.values()))[at[0]])} if run.targets else {}
    return loss | {str(feature): float(values[at[0]]) for feature, values in run.features.items()}


def stand_in_table(real: pl.DataFrame) -> pl.DataFrame:
    """Return, for each quantity, how well merged weights stand for really cooled ones.

    Returns
    -------
    polars.DataFrame
        ``feature, kind, n``; the median over cool-downs of how far merged weights are from cooled ones, as a share of
        how far raw ones are: ``off`` before the cool-down and ``off_end`` over the steps in its place; Pearson's
        correlation of the two relative changes, ``r`` and ``r_end``; then how the quantity of ``raw`` and of ``merged``
        weights before the cool-down goes with the loss after it, across runs of one size and start, as Spearman's
        ``rho_raw`` and ``rho_merged`` with ``p_raw`` and ``p_merged`` by permuting the runs; the same given the last
        raw loss, as ``rho_raw_given``, ``rho_merged_given`` and their p.
    """
    losses = real.filter(kind=LOSS)
    rows = [
        _stand_in(feature, kind, of) | _says(of, losses)
        for (feature, kind), of in real.group_by("feature", "kind", maintain_order=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def _stand_in(feature: object, kind: object, of: pl.DataFrame) -> dict[str, object]:
    values = {name: of[name].to_numpy() for name in ("raw", "merged", "held", "merged_end", "real")}
    off, r = _distance(values["raw"], values["merged"], values["real"])
    off_end, r_end = _distance(values["held"], values["merged_end"], values["real"])
    return {"feature": feature, "kind": kind, "n": len(of), "off": off, "r": r, "off_end": off_end, "r_end": r_end}


def _distance(raw: Vector, merged: Vector, real: Vector) -> tuple[float, float]:
    """Return the median share of the change that is off, and the correlation of the relative changes."""
    known = np.isfinite(raw) & np.isfinite(merged) & np.isfinite(real) & (raw != real) & (raw != 0)
    if not known.any():
        return np.nan, np.nan
    raw, merged, real = raw[known], merged[known], real[known]
    share = float(np.median(np.abs(merged - real) / np.abs(real - raw)))
    changes = np.array([(merged - raw) / np.abs(raw), (real - raw) / np.abs(raw)])
    if len(raw) < MIN_COOL_DOWNS or (np.ptp(changes, axis=1) == 0).any():
        return share, np.nan
    return share, float(np.corrcoef(changes)[0, 1])


def _says(of: pl.DataFrame, losses: pl.DataFrame) -> dict[str, float]:
    """Correlate a quantity before the cool-downs with the loss after them."""
    names = ("rho_raw", "rho_merged", "rho_raw_given", "rho_merged_given")
    result = {name.replace("rho", prefix): np.nan for name in names for prefix in ("rho", "p")}
    strata = losses.select(pl.struct("n_parameters", "start").rank("dense")).to_series().to_numpy().astype(np.int64)
    final, last = losses["real"].to_numpy(), losses["raw"].to_numpy()
    values = of.select("raw", "merged").to_numpy().T
    if len(of) != len(losses) or not np.isfinite(values).all() or not np.isfinite([final, last]).all():
        return result
    for given, controls in (("", None), ("_given", last[None])):
        found = correlate_across_runs(values, final, strata, controls)
        for side, rho, p in zip(("raw", "merged"), found.rho, found.p, strict=True):
            result |= {f"rho_{side}{given}": float(rho), f"p_{side}{given}": float(p)}
    return result
