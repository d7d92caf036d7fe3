"""Which runs a chart shows, where it has no room for all."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import Trajectory


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
    places = np.linspace(0, len(ordered) - 1, max_runs).round().astype(int)
    return [ordered[i] for i in places], f" {max_runs} of {len(trajectories)} runs are shown, by size."


def largest_run(trajectories: Sequence[Trajectory], runs: pl.DataFrame) -> Trajectory:
    """Return the run with the most parameters among those with at least half as many checkpoints as any."""
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    max_checkpoints = max(len(t.steps) for t in trajectories)
    return max((t for t in trajectories if 2 * len(t.steps) >= max_checkpoints), key=lambda t: sizes.get(t.run) or 0)
