"""Rows of charts over training, and what their titles say about many runs and layers."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.phases import Move
from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.checkpoints.roles import block_of
from toposcope.probes.feature import Feature
from toposcope.report.study_data import StudyData
from toposcope.typing import Vector

MAX_LOG_ROWS = 400  # rows of the log drawn for each run; more than pixels only make the page large


def rows_of(trajectories: Iterable[Trajectory], value: Callable[[Trajectory], Vector | None]) -> pl.DataFrame:
    """Return ``run``, ``step``, ``value`` of the runs that have a quantity, where it is finite."""
    frames = [
        pl.DataFrame({"run": t.run, "step": t.steps, "value": np.asarray(values, dtype=np.float64)})
        for t in trajectories
        if (values := value(t)) is not None
    ]
    empty = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "value": pl.Float64})
    return pl.concat([empty, *frames]).filter(pl.col("value").is_finite())


def series_of(
    trajectories: Sequence[Trajectory], values: Mapping[str, Callable[[Trajectory], Vector | None]]
) -> pl.DataFrame:
    """Return ``run``, ``step``, ``value``, ``series`` of several quantities, one a series."""
    return pl.concat(
        rows_of(trajectories, value).with_columns(series=pl.lit(series)) for series, value in values.items()
    )


def feature_rows(trajectories: Iterable[Trajectory], feature: Feature) -> pl.DataFrame:
    """Return `rows_of` of a feature."""
    return rows_of(trajectories, lambda t: t.features.get(feature))


def training_chart(
    data: StudyData,
    name: str,
    rows: pl.DataFrame,
    title: str,
    caption: str,
    axis: str,
    *,
    what: str = "",
    **options: Any,
) -> Chart:
    """Draw a quantity of every run over training, with the checkpoints in which the doctor found a fault."""
    figure = training_lines(rows, axis, run_names(data), faults=faults_of(data), **options)
    return Chart(name, title, caption, f"Line chart of {what or axis} against the training step. {title}.", figure)


def bands_of(trajectories: Iterable[Trajectory], feature: Feature, deviations: float = 1) -> pl.DataFrame:
    """Return ``run``, ``step``, ``low``, ``high`` of the runs with noise: so many deviations either side."""
    frames = [
        pl.DataFrame(
            {"run": t.run, "step": t.steps, "low": values - deviations * noise, "high": values + deviations * noise}
        )
        for t in trajectories
        if (noise := t.noise.get(feature)) is not None and (noise > 0).any()
        for values in [t.features[feature]]
    ]
    empty = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "low": pl.Float64, "high": pl.Float64})
    return pl.concat([empty, *frames]).filter(pl.col("low").is_finite())


def logged(data: StudyData, column: str) -> pl.DataFrame:
    """Return ``run``, ``step``, ``value`` of a column of the logs, at most 400 rows of each run."""
    empty = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "value": pl.Float64})
    parts = [
        rows[spread(len(rows), MAX_LOG_ROWS)].select("run", "step", pl.col("value").cast(pl.Float64))
        for run in (run_names(data) if len(data.log) else ())
        if len(rows := data.log.filter(run=run).with_columns(value=column).filter(pl.col("value").is_finite()))
    ]
    return pl.concat([empty, *parts])


def evaluations(data: StudyData) -> tuple[pl.DataFrame, str]:
    """Return the logged validation loss of the runs whose loss it is, between checkpoints too, and how much it is."""
    runs = [t.run for t in data.trajectories if next(iter(t.targets), "") == "validation_loss"]
    known = data.log.filter(pl.col("run").is_in(runs)) if len(data.log) else data.log
    n = max((len(of.drop_nulls("validation_loss")) for _, of in known.group_by("run")), default=0) if len(known) else 0
    where = f"at {MAX_LOG_ROWS} of {n:,} evaluations of a run" if n > MAX_LOG_ROWS else "at every evaluation"
    return logged(data, "validation_loss").filter(pl.col("run").is_in(runs)), where


def spread(n: int, at_most: int) -> list[int]:
    """Return up to so many places of n, evenly spread, with the first and the last."""
    return sorted(set(np.linspace(0, n - 1, min(n, at_most)).round().astype(int).tolist()))


def run_names(data: StudyData) -> list[str]:
    """Return all runs of the study in its order, which is the order of their colours."""
    return [t.run for t in data.trajectories]


def runs_in(data: StudyData, rows: pl.DataFrame) -> list[Trajectory]:
    """Return the runs that have rows in a table, in the order of the study."""
    present = set(rows.get_column("run")) if len(rows) else set()
    return [t for t in data.trajectories if t.run in present]


def largest_run(trajectories: Sequence[Trajectory], runs: pl.DataFrame) -> Trajectory:
    """Return the run with the most parameters among those with at least half as many checkpoints as any."""
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    most = max(len(t.steps) for t in trajectories)
    return max((t for t in trajectories if 2 * len(t.steps) >= most), key=lambda t: sizes.get(t.run) or 0)


def faults_of(data: StudyData) -> pl.DataFrame:
    """Return the checkpoints in which the doctor found a fault: ``run``, ``step``, ``finding``."""
    faults = data.findings.filter(severity="fault").explode("steps").drop_nulls("steps")
    return faults.select("run", pl.col("steps").alias("step"), pl.col("message").alias("finding"))


def runs_of(n: int, total: int) -> str:
    """Write a number of runs out of all."""
    if total == 1:
        return "the run" if n else "no run"
    return f"all {total} runs" if n == total else f"{n or 'none'} of {total} runs"


def first_last(values: Vector) -> tuple[float, float] | None:
    """Return the first and the last finite value; None with fewer than two."""
    known = values[np.isfinite(values)]
    return (float(known[0]), float(known[-1])) if len(known) > 1 else None


def direction_of(trajectories: Iterable[Trajectory], feature: Feature) -> str:
    """Say in how many of the runs that have a feature it rises or falls."""
    return direction([pair for t in trajectories if feature in t.features if (pair := first_last(t.features[feature]))])


def direction(ends: Sequence[tuple[float, float]], rises: str = "rises", falls: str = "falls") -> str:
    """Say in how many runs a quantity rises or falls from the first to the last checkpoint: "rises in all 3 runs"."""
    if not ends:
        return "is known at one checkpoint at most"
    rose, fell = sum(last > first for first, last in ends), sum(last < first for first, last in ends)
    if rose and fell:
        return f"{rises} in {rose} and {falls} in {fell} of {len(ends)} runs"
    if rose or fell:
        return f"{rises if rose else falls} in {runs_of(rose or fell, len(ends))}"
    return f"does not change in {'the run' if len(ends) == 1 else f'any of {len(ends)} runs'}"


def course(moves: Sequence[Move]) -> str:
    """Say where a quantity goes in how many runs, and in how many of them it turns on the way."""
    ends = [(moved.first, moved.last) for moved in moves]
    counts = {turn: sum(moved.turn == turn for moved in moves) for turn in ("peak", "dip")}
    turns = [f"a {turn}{f' in {n}' if len(moves) > 1 else ''}" for turn, n in counts.items() if n]
    if not turns:
        return direction(ends)
    return f"{direction(ends, 'ends higher', 'ends lower')}, after {' and '.join(turns)}"


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
    shown = [ordered[i] for i in spread(len(ordered), max_runs)]
    return shown, f" {max_runs} of {len(trajectories)} runs are shown, by size."


def in_order(trajectory: Trajectory) -> list[str]:
    """Return the layers by block, the head last; checkpoint files may hold them in another order."""

    def place(layer: str) -> tuple[bool, int]:
        block = block_of(layer)
        return trajectory.roles.get(layer) == "head", -1 if block is None else block

    return sorted(trajectory.layers, key=place)


def short_names(names: Sequence[str], roles: dict[str, str]) -> list[str]:
    """Return the number of a layer's block and its role, or the layer's own name where that is not unique."""
    labels = []
    for name in names:
        block, role = block_of(name), roles.get(name) or "other"
        labels.append(role if block is None else f"{block} {role}")
    counts = Counter(labels)
    return [label if counts[label] == 1 else name for label, name in zip(labels, names, strict=True)]


def in_words(label: str) -> str:
    """Write a short name in a sentence: "mlp.in of block 0"."""
    block, _, role = label.partition(" ")
    return f"{role} of block {block}" if role and block.isdigit() else label
