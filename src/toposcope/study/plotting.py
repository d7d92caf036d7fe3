"""One statistic of a checkpoint series over training, measured when it is drawn."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.checkpoints import Series
from toposcope.errors import ToposcopeError, choices
from toposcope.probes import Probes, declarations, make_probes
from toposcope.probes.feature import NETWORK
from toposcope.probes.probe import POOLED
from toposcope.progress import Progress, silent
from toposcope.study.declaration import DEFAULT_PROBES
from toposcope.study.measuring import measure


def plot_series(
    series: Series,
    statistic: str,
    *,
    probes: Probes | None = None,
    text: str | Path = "",
    workers: int = 1,
    progress: Progress = silent,
) -> Chart:
    """Measure one statistic of the whole network at every checkpoint, and draw it over training.

    Parameters
    ----------
    series : Series
    statistic : str
        As in `toposcope.measure`: ``np_mean``, ``H0.total``, ``frobenius_norm``.
    probes : sequence of dict or str, dict, str, optional
        Where to find it: ``[{"name": "rips", "pooled": True}]``. By default the first of the default probes that
        measures it at the last two checkpoints.
    text : str or Path
        What models read, for probes that need it.
    workers : int
        Processes.
    progress : callable

    Returns
    -------
    Chart

    Raises
    ------
    ToposcopeError
        If the series is empty, no probe measures the statistic, or a checkpoint could not be measured.

    Examples
    --------
    >>> import tempfile, torch
    >>> from toposcope.checkpoints import series
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = Path(parent) / "run"
    ...     folder.mkdir()
    ...     for step in (100, 200):
    ...         torch.save({"fc.weight": torch.eye(8) + step / 1000}, f"{folder}/step_{step}.pt")
    ...     chart = plot_series(series(folder), "frobenius_norm")
    >>> chart.title
    'frobenius_norm of run rises from 3.2 to 3.71 between steps 100 and 200'
    """
    if not len(series):
        raise ToposcopeError(f"{series.spec}: no checkpoints; there is nothing to draw")
    wanted = declarations(probes) if probes is not None else _probes_with(statistic, series)
    rows = _network(measure(series, probes=wanted, text=text, workers=workers, progress=progress))
    chosen = rows.filter(statistic=statistic)
    if chosen.is_empty():
        raise _unknown(statistic, rows)
    first = chosen.row(0, named=True)
    return _chart(series.name, statistic, chosen.filter(probe=first["probe"], options=first["options"]))


def _probes_with(statistic: str, series: Series) -> list[dict[str, Any]]:
    """Return the first of the default probes that measures a statistic, with the probe it compares results of.

    Which statistics a probe has depends on the checkpoint, so the last two are measured.
    """
    frames = []
    made = make_probes(DEFAULT_PROBES)
    for probe in made:
        used = [each for each in (probe.source(made), probe) if each is not None]
        declared = [{"name": each.name(), **json.loads(each.options())} for each in used]
        frames.append(_network(measure(series[-2:], probes=declared)))
        if statistic in frames[-1].get_column("statistic"):
            return declared
    raise _unknown(statistic, pl.concat(frames))


def _network(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("layer").is_in([NETWORK, POOLED]))


def _unknown(statistic: str, rows: pl.DataFrame) -> ToposcopeError:
    known = rows.get_column("statistic").unique(maintain_order=True)
    return ToposcopeError(f"statistic {statistic!r}: not measured of the whole network; {choices(statistic, known)}")


def _chart(run: str, statistic: str, rows: pl.DataFrame) -> Chart:
    first, last = rows.get_column("value")[0], rows.get_column("value")[-1]
    way = "rises" if last > first else "falls" if last < first else "does not change"
    steps = rows.get_column("step")
    title = f"{statistic} of {run}"
    if len(rows) > 1:
        ends = f" from {first:.3g} to {last:.3g}" if first != last else ""
        title += f" {way}{ends} between steps {steps[0]:,} and {steps[-1]:,}"
    figure = training_lines(rows.select("run", "step", "value"), statistic, [run])
    caption = f"Measured of the whole network by {rows.get_column('probe')[0]} at {len(rows):,} checkpoints."
    return Chart("series", title, caption, f"Line chart of {statistic} against the training step. {title}.", figure)
