"""The associations of a study with its loss, as a table."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from toposcope.analysis.adjustment import Method
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory, trajectories
from toposcope.study import Study


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


def correlations(study: str | Path | Study, adjust: Method = "holm") -> pl.DataFrame:
    """Return the association of every feature of a study with its loss, and the verdict on each: a row for each pair.

    Parameters
    ----------
    study : str, Path or Study
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.

    Returns
    -------
    polars.DataFrame
        The table ``association.csv`` of the report (``docs/methods/association.md``).
    """
    opened = Study.load(study)
    return association_table(study_trajectories(opened, opened.frames()), adjust)
