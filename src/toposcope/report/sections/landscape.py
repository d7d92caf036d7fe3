"""The loss on planes around each checkpoint: basins, heights, second derivatives, each with its spread."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.probes.feature import NETWORK
from toposcope.probes.probe import NOISE
from toposcope.report import formats
from toposcope.report.charts.series import largest_run, runs_in, training_chart
from toposcope.report.document import Block, Picture, Terms, folded, linked
from toposcope.report.not_made import needs_probe
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import number_of, numbers, table, text_of
from toposcope.study.landscape_charts import plane_contour

PROBE, TABLE = "landscape", "landscape"
SPREAD_TITLES = {
    "planes": "over planes", "batches": "over texts", "resolution": "half resolution",
    "numerical": "numerical error",
}  # fmt: skip
SPREADS = {".batches": "batches", ".resolution": "resolution", ".numerical": "numerical"}


def landscape_rows(data: StudyData) -> pl.DataFrame:
    """Return ``probe``, ``run``, ``step``, ``statistic``, ``value``, ``planes``, ``batches``, ``resolution`` and more.

    After the value: the spreads over planes and texts, the change at half the resolution, and ``numerical``, the
    error of products with the Hessian; of every declared probe of this name, by its label.
    """
    labels = data.labels.filter(probe=PROBE).select("options", "label")
    frame = data.frame.filter(pl.col("value").is_finite(), probe=PROBE, layer=NETWORK)
    rows = frame.join(labels, on="options").select(pl.col("label").alias("probe"), "run", "step", "statistic", "value")
    keys = ["probe", "run", "step", "statistic"]
    found = rows.filter(~pl.col("statistic").str.ends_with(NOISE))
    for suffix, name in {**SPREADS, "": "planes"}.items():
        spread = rows.filter(pl.col("statistic").str.ends_with(suffix + NOISE))
        spread = spread.with_columns(pl.col("statistic").str.strip_suffix(suffix + NOISE)).rename({"value": name})
        found = found.join(spread, on=keys, how="left")
    return found.select(*keys, "value", "planes", *SPREADS.values()).sort("probe", "run", "step")


def landscape_charts(data: StudyData) -> list[Chart]:
    """Draw a plane of the last checkpoint; the number of minima, and the range of the loss, of the first probe."""
    charts = [
        stored_plane_chart(data),
        _chart(data, "minima", "minima on a plane", "landscape-minima"),
        _chart(data, "range", "range of the loss on a plane (nats per token)", "landscape-range"),
    ]
    return [chart for chart in charts if chart is not None]


def stored_plane_chart(data: StudyData) -> Chart | None:
    """Draw the first plane around the last checkpoint of the largest run, of the first probe that stored one."""
    for label, options in data.labels.filter(probe="landscape").select("label", "options").iter_rows():
        measured = data.frame.filter(probe="landscape", options=options, layer=NETWORK)
        if not (runs := runs_in(data, measured)):
            continue
        run = largest_run(runs, data.runs).run
        step = max(measured.filter(run=run).get_column("step"))
        try:
            values = data.states(run, step, label)[NETWORK].astype(np.float64)
        except (ToposcopeError, KeyError):  # its file is missing, or its points are scattered
            continue
        declared = msgspec.json.decode(options)
        x, y = (np.linspace(-declared["span"], declared["span"], side) for side in values.shape)
        chart = plane_contour(values, x, y, declared["directions"], name="loss-plane")
        return replace(chart, title=f"{run}, step {step:,}: {chart.title}")
    return None


def basins_title(data: StudyData) -> str:
    """Say at how many checkpoints some plane has several basins, and where planes differ; empty without planes."""
    rows = _rows(data, "minima")
    if not len(rows):
        return ""
    several = int((rows.get_column("value") > 1).sum())
    differ = int((rows.get_column("planes") > 0).sum())
    spread = f"; their number differs between the planes of {differ}" if several and differ else ""
    return f"The planes of {several} of {len(rows)} checkpoints have more than one basin{spread}"


def _rows(data: StudyData, statistic: str) -> pl.DataFrame:
    rows = first_probe(data.tables[TABLE])
    return rows.filter(statistic=statistic) if len(rows) else rows


def first_probe(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the first declared probe."""
    return rows.filter(pl.col("probe") == rows.get_column("probe")[0]) if len(rows) else rows


def _chart(data: StudyData, statistic: str, axis: str, name: str) -> Chart | None:
    rows = _rows(data, statistic)
    if not len(rows):
        return None
    spread = rows.drop_nulls("planes")
    bands = spread.with_columns(low=pl.col("value") - pl.col("planes"), high=pl.col("value") + pl.col("planes"))
    title = basins_title(data) if statistic == "minima" else _range_title(rows)
    caption = "Means over planes; shaded: the standard deviation over planes on either side."
    return training_chart(
        data,
        name,
        rows,
        title,
        caption,
        axis,
        what=f"the {axis}",
        bands=bands if len(bands) else None,
        may_be_log=False,
    )


def _range_title(rows: pl.DataFrame) -> str:
    values = rows.get_column("value").to_numpy()
    widest = rows.get_column("planes").max()
    spread = f", ± up to {widest:.2g} between planes" if isinstance(widest, float) else ""
    return f"The loss ranges over {values.min():.3g} to {values.max():.3g} nats per token on the planes{spread}"


TERMS = Terms(
    (
        ("planes of the loss", "through each checkpoint, along random directions normalised filter by filter (Li et "
         "al. 2018), or eigenvectors of the Hessian; the loss on a fixed text at every point."),
        ("basins", "of the merge tree of the sublevel sets. Average persistence is the mean lifetime of those that "
         "join an older one, SMAD the mean climb from a minimum to its first saddle; both are undefined with one."),
        ("spread", "over planes and over parts of the text, standard deviations; the change at half the resolution. "
         "Second derivatives have the error of the products with the Hessian, its eigenvalues their residuals."),
    )
)  # fmt: skip


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = first_probe(data.tables[TABLE])
    if not len(rows):
        return pictures
    last = rows.filter(pl.col("step") == pl.col("step").max().over("run"))
    specs = (
        text_of("run", "run", names_row=True),
        number_of("step", "step", formats.whole),
        text_of("statistic", "statistic"),
        number_of("mean", "value", formats.plain),
        *numbers(plain={title: column for column, title in SPREAD_TITLES.items()}),
    )
    caption = "Planes of the last checkpoint of each run, with the spread of each statistic"
    return (
        *pictures,
        folded(table(TABLE, caption, specs, last.to_dicts())),
        linked(f"All checkpoints and probes: {TABLE}.csv.", note=True),
    )


SECTION = ReportSection(
    anchor="landscape",
    title="Landscape",
    position=83,
    tables={TABLE: landscape_rows},
    needs={TABLE: (needs_probe(PROBE),)},
    charts=(landscape_charts,),
    blocks=_blocks,
    finding=basins_title,
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
)
