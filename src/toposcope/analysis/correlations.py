"""The associations of a study with its loss, or with another quantity that was logged, as a table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from toposcope.analysis.adjustment import Method
from toposcope.analysis.logged import GRADIENT_NORM_MEAN, GRADIENT_NORM_STD
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory, trajectories
from toposcope.errors import ToposcopeError, checks_arguments, choices
from toposcope.logs.table import ByStep
from toposcope.study import Study

GRADIENT_NORM = "grad_norm"


def study_trajectories(study: Study, frames: Iterable[pl.DataFrame]) -> list[Trajectory]:
    """Arrange the frames of a study by run, as it declares them."""
    declared = study.declaration
    return trajectories(
        frames,
        study.labels(),
        study.log(),
        batch_first=declared.protocol == "published",
        tokens_per_step={n: s.tokens_per_step for n, s in declared.named_series().items() if s.tokens_per_step},
    )


@checks_arguments
def correlations(study: str | Path | Study, adjust: Method = "holm", target: str | None = None) -> pl.DataFrame:
    """Return the association of every feature of a study with its loss, and the verdict on each: a row for each pair.

    Parameters
    ----------
    study : str, Path or Study
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.
    target : str, optional
        What takes the place of the loss: ``"grad_norm"``, the mean gradient norm since the checkpoint before, or what
        else was logged, such as the score on a task (the column ``target`` of `Study.targets`).

    Returns
    -------
    polars.DataFrame
        The table ``association.csv`` of the report (``docs/methods/association.md``).

    Raises
    ------
    ToposcopeError
        If no run has logged the target.
    """
    opened = Study.load(study)
    runs = study_trajectories(opened, opened.frames())
    if target is None:
        return association_table(runs, adjust)
    # without the speed of neural persistence, which goes with the loss alone
    return association_table([*_with_target(runs, opened, target)], adjust).filter(target=target)


def _with_target(runs: Sequence[Trajectory], study: Study, target: str) -> Iterator[Trajectory]:
    """Yield the runs that have logged a target, with it alone, and without it among the features."""
    logged = study.targets()
    known = [*dict.fromkeys(logged["target"])]
    known += [GRADIENT_NORM] if any(GRADIENT_NORM_MEAN in run.features for run in runs) else []
    if target not in known:
        raise ToposcopeError(f"target {target!r}: no run has logged it; {choices(target, known)}")
    for run in runs:
        rows = logged.filter(run=run.run, target=target).sort("step")
        values = ByStep(rows["step"].to_numpy(), rows["value"].to_numpy()).at(run.steps) if len(rows) else None
        features = run.features
        if target == GRADIENT_NORM:
            features = {f: v for f, v in run.features.items() if f not in (GRADIENT_NORM_MEAN, GRADIENT_NORM_STD)}
            values = run.features.get(GRADIENT_NORM_MEAN)
        if values is not None:
            yield replace(run, targets={target: values}, features=features)
