"""Whether features of merged weights say more of the loss after a cool-down than those of raw weights do.

A cooled twin has, at the checkpoints of its run, features and loss of the average of the checkpoints shortly before,
which stands for a cool-down over them. Features of both are set against that cooled loss, at the same checkpoints.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from toposcope.analysis import Trajectory, phase_table
from toposcope.extend import AssociationTask, FeatureSeries, Matrix, Steps, Vector, associate, derive_seed

MIN_CHECKPOINTS = 5  # an association is measured on at least this many checkpoints
TAKEN = ("rho", "rho_given_step", "rho_differences_given_step")
"""Of the columns of an association, those that are compared."""
SIDES = ("raw", "cooled")
SCHEMA = {
    **dict.fromkeys(("run", "target", "feature", "kind"), pl.String),
    "n": pl.Int64,
    **dict.fromkeys((f"{name}_{side}" for side in SIDES for name in TAKEN), pl.Float64),
}


def cooled_table(runs: Sequence[Trajectory], twins: Sequence[Trajectory]) -> pl.DataFrame:
    """Return the association of each feature, of raw and of merged weights, with the loss of the merged ones.

    Parameters
    ----------
    runs : sequence of Trajectory
    twins : sequence of Trajectory
        Their cooled twins, each under the name of its run.

    Returns
    -------
    polars.DataFrame
        ``run, target, feature, kind, n``; then Spearman's rho with the cooled loss, the same given the step, and that
        of the changes from checkpoint to checkpoint given the step, with ``_raw`` for features of raw weights and
        ``_cooled`` for those of merged ones. In a row of kind ``loss`` the feature is the loss of the raw weights: a
        control. NaN where not defined; a twin without a loss, or with fewer than 5 checkpoints, has no rows.
    """
    by_run = {run.run: run for run in runs}
    rows = [row for twin in twins if twin.run in by_run for row in _rows(by_run[twin.run], twin)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _rows(run: Trajectory, twin: Trajectory) -> Iterator[tuple[str | int | float, ...]]:
    """Yield the rows of a run and its twin."""
    steps, places, _ = np.intersect1d(run.steps, twin.steps, return_indices=True)
    if not twin.targets or len(steps) < MIN_CHECKPOINTS or len(steps) != len(twin.steps):
        return
    target, loss = next(iter(twin.targets.items()))
    features = [feature for feature in run.features if feature in twin.features]
    named = [(str(feature), str(feature.kind)) for feature in features]
    raw = [run.features[feature][places] for feature in features]
    cooled = [twin.features[feature] for feature in features]
    if target in run.targets:
        named.insert(0, (target, "loss"))
        raw.insert(0, run.targets[target][places])
        cooled.insert(0, np.full(len(steps), np.nan))
    n, found = zip(*(_against(run.run, steps, np.array(side), loss) for side in (raw, cooled)), strict=True)
    for i, name in enumerate(named):
        yield (run.run, target, *name, int(n[0][i]), *found[0][i].tolist(), *found[1][i].tolist())


def _against(run: str, steps: Steps, features: Matrix, loss: Vector) -> tuple[Steps, Matrix]:
    """Return for each feature the checkpoints where it is known, and the statistics `TAKEN`, shape (f, 3)."""
    task = AssociationTask(FeatureSeries(steps, features), loss, {"step": steps.astype(np.float64)})
    result = associate(task, derive_seed(0, "cooled", run))
    return result.n, np.column_stack([result.column(name) for name in TAKEN])


def cooled_phase_table(runs: Sequence[Trajectory], twins: Sequence[Trajectory]) -> pl.DataFrame:
    """Return the phases (`phase_table`) of twins and, at the same checkpoints, of their runs, with ``weights``.

    ``weights`` is ``raw`` or ``cooled``.
    """
    cooled = {twin.run: twin for twin in twins}
    raw = [_at(run, cooled[run.run].steps) for run in runs if run.run in cooled]
    tables = [
        phase_table(found).select(pl.lit(side).alias("weights"), pl.all())
        for side, found in zip(SIDES, (raw, twins), strict=True)
    ]
    return pl.concat(tables).sort("run", "feature", "weights", maintain_order=True)


def _at(run: Trajectory, steps: Steps) -> Trajectory:
    """Return the features of a run at some of its checkpoints."""
    here = np.isin(run.steps, steps)
    features = {feature: values[here] for feature, values in run.features.items()}
    return Trajectory(run.run, run.steps[here], features, {}, {}, clouds=run.clouds)
