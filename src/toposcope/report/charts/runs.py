"""Which runs a chart shows, where it has no room for all."""

from collections.abc import Sequence

import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.charts.series import spread


def choose_runs(trajectories: Sequence[Trajectory], runs: pl.DataFrame, max_runs: int) -> tuple[list[Trajectory], str]:
    """Choose the runs that fit in a chart, from the smallest to the largest model.

    Returns
    -------
    chosen : list of Trajectory
        All of them, in the study's order, if there are at most `max_runs`; else evenly spaced in the order of size.
    note : str
        For the caption: what was left out; empty if nothing was.
    """
    if len(trajectories) <= max_runs:
        return list(trajectories), ""
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    ordered = sorted(trajectories, key=lambda t: sizes.get(t.run) or 0)
    return [
        ordered[i] for i in spread(len(ordered), max_runs)
    ], f" {max_runs} of {len(trajectories)} runs are shown, by size."
