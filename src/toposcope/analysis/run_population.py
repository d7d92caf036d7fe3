"""The runs of a study that can be compared with each other at equal step, and their final losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from toposcope.analysis import tuning
from toposcope.analysis.trajectory import TEXT_LOSS, Trajectory
from toposcope.logs import final_training_loss
from toposcope.typing import Indices, Matrix, Steps, Vector
from toposcope.wording import counted

MIN_RUNS = 8  # runs of a size that are needed; with several sizes, as many runs less sizes as these leave
FINAL_LOSSES = {"validation_loss": "validation loss", TEXT_LOSS: "loss on the text", "loss": "training loss"}
"""Final losses by the name of the loss they are of, the most reliable first."""
TRAINING = ("smoothed_loss", "batch_loss")
ByRun = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class RunPopulation:
    """Runs that are compared at equal step."""

    runs: list[Trajectory]
    loss: str  # a key of `FINAL_LOSSES`: which loss is meant throughout
    final: Vector  # shape (n,); final loss of each run (docs/methods/forecasting.md)
    steps: Steps  # shape (t,); steps at which every run has a checkpoint
    # shape (n,); runs of the same size and length; all 0 where sizes or lengths are taken out as covariates
    strata: Indices
    covariates: Matrix  # shape (k, n); logarithms of size and length where these differ within a stratum
    sizes: list[int]  # parameters, ascending
    left_out: dict[str, str] = field(default_factory=dict)  # why, by run

    @property
    def shortfall(self) -> str:
        """What is missing for the test, and what would make it possible; empty where it can be made."""
        if not is_enough(self.strata):
            return (
                f"{counted(len(self.runs), 'run')} can be compared at equal step; it takes {MIN_RUNS} runs of one size "
                "with a known final loss"
            )
        return "" if len(self.steps) else "the runs have no checkpoint at the same step"

    def losses(self) -> Matrix:
        """Return the loss of each run at the common steps, shape (t, n); NaN where unknown."""
        names = TRAINING if self.loss == "loss" else (self.loss,)
        return self.at_steps([next(t.targets[name] for name in names if name in t.targets) for t in self.runs])

    def at_steps(self, series: Sequence[Vector | None]) -> Matrix:
        """Return a series of each run at the common steps, shape (t, n); NaN for a run without it."""
        unknown = np.full(len(self.steps), np.nan)
        columns = [
            unknown if values is None else values[np.searchsorted(t.steps, self.steps)]
            for t, values in zip(self.runs, series, strict=True)
        ]
        return np.array(columns).reshape(len(self.runs), len(self.steps)).T


def is_enough(strata: Indices) -> bool:
    """Return whether runs leave as many degrees of freedom as 8 runs of one size."""
    return len(strata) >= MIN_RUNS and len(strata) - len(np.unique(strata)) >= MIN_RUNS - 1


def run_population(trajectories: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame) -> RunPopulation:
    """Choose the runs that are compared at equal step.

    Runs with a known final loss take part, the loss being the first of `FINAL_LOSSES` that most runs have. They are
    compared within size and length where enough of them share these; else size and length are covariates.
    """
    rows = {row["run"]: row for row in runs.to_dicts()}
    left_out: dict[str, str] = {}
    finals: dict[str, dict[str, float]] = {}
    for t in trajectories:
        row = rows.get(t.run, {})
        if row.get("status") != "complete":
            left_out[t.run] = str(row.get("status") or "unknown status")
        elif row.get("n_parameters") is None:
            left_out[t.run] = "unknown size"
        else:
            finals[t.run] = known_final_losses(t, log.filter(run=t.run) if len(log) else log)
    loss = max(FINAL_LOSSES, key=lambda name: sum(name in known for known in finals.values()))
    left_out |= {run: "no known final loss" for run, known in finals.items() if loss not in known}
    members = [t for t in trajectories if loss in finals.get(t.run, {})]
    size = {t.run: int(rows[t.run]["n_parameters"]) for t in members}
    length = {t.run: _last_step(t, log) for t in members}
    members, strata = _compared(members, size, length, left_out)
    members, strata, steps = _with_common_steps(members, size, length, strata, left_out)
    shared = len(np.unique(strata)) == 1
    covariates = [np.log([float(of[t.run]) for t in members]) for of in (size, length)] if shared and members else []
    varying = [c for c in covariates if np.ptp(c) > 0]
    return RunPopulation(
        runs=members,
        loss=loss,
        final=np.array([finals[t.run][loss] for t in members]),
        steps=steps,
        strata=strata,
        covariates=np.array(varying).reshape(len(varying), len(members)),
        sizes=sorted({size[t.run] for t in members}),
        left_out=left_out,
    )


def known_final_losses(trajectory: Trajectory, log: pl.DataFrame) -> dict[str, float]:
    """Return the final losses of a run that are known to its end, by the keys of `FINAL_LOSSES`."""
    end = tuning.MIN_LOGGED_SHARE * _last_step(trajectory, log)
    finals: dict[str, float] = {}
    for name in ("validation_loss", TEXT_LOSS):
        values = trajectory.targets.get(name, np.empty(0))
        known = np.flatnonzero(np.isfinite(values))
        if len(known) and trajectory.steps[known[-1]] >= end:
            finals[name] = float(values[known[-1]])
    if len(log) and any(name in trajectory.targets for name in TRAINING):
        rows = log.select("step", "loss").sort("step").drop_nulls().filter(pl.col("loss").is_finite())
        if len(rows) and rows.item(-1, "step") >= end:
            finals["loss"] = final_training_loss(*(rows.get_column(name).to_numpy() for name in ("step", "loss")))[0]
    return finals


def _last_step(trajectory: Trajectory, log: pl.DataFrame) -> int:
    logged = log.filter(run=trajectory.run).get_column("step").max() if len(log) else None
    return max(int(trajectory.steps[-1]), int(logged) if isinstance(logged, int) else 0, 1)


def _compared(
    members: list[Trajectory], size: ByRun, length: ByRun, left_out: dict[str, str]
) -> tuple[list[Trajectory], Indices]:
    """Return the runs of strata with more than one run, if they are enough; else all, in one stratum."""
    keys = [(size[t.run], length[t.run]) for t in members]
    repeated = [t for t, key in zip(members, keys, strict=True) if keys.count(key) > 1]
    order = {key: i for i, key in enumerate(sorted(set(keys)))}
    strata = np.array([order[size[t.run], length[t.run]] for t in repeated], dtype=np.int64)
    if not is_enough(strata):
        return members, np.zeros(len(members), dtype=np.int64)
    left_out |= {t.run: "no other run of its size and length" for t in members if t not in repeated}
    return repeated, strata


def _with_common_steps(
    members: list[Trajectory], size: ByRun, length: ByRun, strata: Indices, left_out: dict[str, str]
) -> tuple[list[Trajectory], Indices, Steps]:
    """Leave out the run that shares fewest steps, again and again, while common steps are few and runs to spare."""
    everyone = members, strata, dict[str, str]()
    dropped = dict(everyone[2])
    while True:
        grids = [set(t.steps.tolist()) for t in members]
        common = set.intersection(*grids) if grids else set()
        enough = is_enough(strata)
        if not enough or len(common) >= tuning.MIN_COMMON_SHARE * float(np.median([len(grid) for grid in grids])):
            break
        worst = int(np.argmin([sum(len(one & other) for other in grids) for one in grids]))
        dropped[members[worst].run] = "its checkpoints are at other steps"
        members, strata = _compared([t for i, t in enumerate(members) if i != worst], size, length, dropped)
    if not is_enough(strata):
        members, strata, dropped = everyone
        common = set.intersection(*(set(t.steps.tolist()) for t in members)) if members else set()
    left_out |= dropped
    return members, strata, np.array(sorted(common), dtype=np.int64)
