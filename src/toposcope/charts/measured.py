"""What `toposcope.measure` returned, over training."""

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.errors import ToposcopeError, choices

COLUMNS = ("run", "step", "layer", "probe", "options", "statistic", "kind", "value")


def plot_series(frame: pl.DataFrame, statistic: str = "", *, layer: str = "network") -> Chart:
    """Draw a statistic over training, a line for each run; of several probes, or options of one, dashed.

    Parameters
    ----------
    frame : polars.DataFrame
        As `toposcope.measure` and `Study.frame` return it.
    statistic : str
        By default the first one of topology, else the first.
    layer : str
        By default the whole network.

    Returns
    -------
    Chart

    Raises
    ------
    ToposcopeError
        If the frame is another, or has no such layer or statistic.
    """
    if missing := [name for name in COLUMNS if name not in getattr(frame, "columns", ())]:
        raise ToposcopeError(f"frame: no column {missing[0]!r}; give what toposcope.measure or Study.frame returns")
    if not len(rows := frame.filter(layer=layer)):
        layers = frame.get_column("layer").unique(maintain_order=True)
        raise ToposcopeError(f"layer {layer!r}: {choices(layer, layers)}")
    first = rows.sort(pl.col("kind") != "topology", maintain_order=True).item(0, "statistic")
    statistic = statistic or first
    if not len(chosen := rows.filter(statistic=statistic)):
        names = rows.get_column("statistic").unique(maintain_order=True)
        raise ToposcopeError(f"statistic {statistic!r}: {choices(statistic, names)}")
    series = pl.concat_str("probe", pl.col("options").replace("{}", ""), separator=" ").str.strip_chars()
    lines = chosen.select("run", "step", "value", series=series)
    kinds, runs = (lines.get_column(name).unique(maintain_order=True).to_list() for name in ("series", "run"))
    figure = training_lines(lines, statistic, runs, dashes=kinds if len(kinds) > 1 else ())
    title = f"{statistic} ({', '.join(chosen.get_column('probe').unique(maintain_order=True))}) of {layer}"
    return Chart("series", title, "", f"Line chart over training. {title}.", figure)
