"""The loss, neural persistence and H0 total of two studies in one chart each."""

from collections.abc import Iterator, Sequence

import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.probes.feature import NETWORK
from toposcope.report.first_differences import Names, Pair
from toposcope.report.headline import H0, NP, TARGETS
from toposcope.typing import Vector


def overlaid_charts(names: Names, pairs: Sequence[Pair], differences: pl.DataFrame) -> list[Chart]:
    """Draw both runs of each pair, those of the second study dashed.

    Parameters
    ----------
    names : tuple of str
        Of the studies.
    pairs : sequence of (Trajectory, Trajectory)
    differences : polars.DataFrame
        From `toposcope.report.first_differences.first_differences_frame`.
    """
    charts = []
    for stem, key, name, axis, both in _quantities(pairs):
        frames = [
            pl.DataFrame({"run": a.run, "series": study, "step": run.steps, "value": values})
            for a, b, *found in both
            for run, study, values in zip((a, b), names, found, strict=True)
        ]
        if frames:
            title = _title(name, differences.filter(level=NETWORK, quantity=key))
            runs = list(dict.fromkeys(a.run for a, *_ in both))
            caption = f"Solid: {names[0]}; dashed: {names[1]}. One colour is one pair of runs."
            figure = training_lines(pl.concat(frames), axis, runs, dashes=names)
            charts.append(Chart(f"both-{stem}", title, caption, f"Line chart over training. {title}.", figure))
    return charts


Both = list[tuple[Trajectory, Trajectory, Vector, Vector]]


def _quantities(pairs: Sequence[Pair]) -> Iterator[tuple[str, str, str, str, Both]]:
    """Yield file stem, key, name and axis of each quantity, with the pairs that have it."""
    targets = dict.fromkeys(next(iter(a.targets), "") for a, _ in pairs)
    for target in [name for name in targets if name][:1]:
        both = [
            (a, b, a.targets[target], b.targets[target])
            for a, b in pairs
            if target in a.targets and target in b.targets
        ]
        name = TARGETS[target]
        yield "loss", target, f"{name[:1].upper()}{name[1:]}", f"{name} (nats per token)", both
    for stem, headline in (("neural-persistence", NP), ("h0-total", H0)):
        f = headline.feature
        both = [(a, b, a.features[f], b.features[f]) for a, b in pairs if f in a.features and f in b.features]
        yield stem, headline.key, headline.name, headline.axis, both


def _title(name: str, rows: pl.DataFrame) -> str:
    """Say in how many pairs of runs the quantity differs beyond the noise."""
    beyond = rows.drop_nulls("step")
    if not len(rows):
        return f"{name} of both studies"
    if len(rows) == 1:
        row = rows.row(0, named=True)
        return (
            f"{name} first differs beyond the noise at step {row['step']:,}"
            if len(beyond)
            else f"{name} does not differ beyond the noise"
        )
    return f"{name} differs beyond the noise in {len(beyond)} of {len(rows)} pairs of runs"
