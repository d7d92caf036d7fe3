"""The page of a landscape: planes of the loss with their merge trees, and every statistic with its spread."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from toposcope.report.document import Block, Picture, Terms, linked, paragraph
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.sections.landscape import SPREAD_TITLES
from toposcope.report.tables import numbers, table, text_of
from toposcope.report.writing import write_sections
from toposcope.study.landscape_report import STATISTIC_NAMES, LandscapeReport
from toposcope.wording import sentence


def write_landscape(folder: Path, report: LandscapeReport) -> Path:
    """Write the page of a landscape: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, f"Landscape of {report.name}", SECTIONS, report)


Data = ReportData[LandscapeReport]


def estimates_frame(report: LandscapeReport) -> pl.DataFrame:
    """Return ``statistic, name, mean, planes, noise_planes, noise_batches, noise_resolution, noise_numerical``."""
    found = report.to_dict()["statistics"]
    rows = [{"statistic": name, "name": STATISTIC_NAMES[name], **each} for name, each in found.items()]
    names = ("noise_planes", "noise_batches", "noise_resolution", "noise_numerical")
    noise = dict.fromkeys(names, pl.Float64)
    schema = {"statistic": pl.String, "name": pl.String, "mean": pl.Float64, "planes": pl.Int64, **noise}
    return pl.DataFrame(rows, schema=schema)


def losses_frame(report: LandscapeReport) -> pl.DataFrame:
    """Return ``plane, first, second, loss``, one row per point; a loss that is not finite is empty."""
    frames = []
    for number, plane in enumerate(report.planes, start=1):
        places = plane.surface.sample.coordinates
        frame = pl.DataFrame({"first": places[:, 0], "second": places[:, 1], "loss": plane.surface.values})
        frame = frame.with_columns(loss=pl.when(pl.col("loss").is_finite()).then("loss"))
        frames.append(frame.select(pl.lit(number).alias("plane"), "first", "second", "loss"))
    return pl.concat(frames)


def _planes(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    note = linked("The losses of all points: losses.csv.", note=True)
    bound = data.report.bound_line()
    return (
        paragraph(sentence(data.report.planes_line())),
        *pictures,
        paragraph(sentence(bound), note=True) if bound else None,
        note,
    )


def _statistics(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs = (
        text_of("statistic", "name", names_row=True),
        *numbers(plain={"mean": "mean"}, whole={"of planes": "planes"}),
        *numbers(plain={title: f"noise_{what}" for what, title in SPREAD_TITLES.items()}),
    )
    caption = "Means over planes, and how far each depends on plane, text and resolution"
    rows = data.tables["statistics"].filter(pl.col("statistic").is_in([*data.report.statistics()])).to_dicts()
    return (table("statistics", caption, specs, rows), *_between(data.report))


def _between(report: LandscapeReport) -> list[Block]:
    if not report.between or report.is_one_minimum:
        return []
    w, b = report.between["wasserstein_1"], report.between["bottleneck"]
    return [paragraph(f"Mean distances between the diagrams of two planes: Wasserstein {w:.3g}, bottleneck {b:.3g}.")]


def _read(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    report = data.report
    text = f"{report.text}, {report.n_tokens:,} predicted tokens" if report.text else "a function of one's own"
    loss = f"{report.loss:.6g} {report.unit}".strip()
    return [Terms((("checkpoint", report.location), ("text", text), ("loss at the checkpoint", loss)))]


SECTIONS = (
    ReportSection[Data](
        anchor="planes",
        title="Planes",
        tables={"losses": lambda data: losses_frame(data.report)},
        charts=(lambda data: data.report.charts(),),
        blocks=_planes,
        summary=lambda data: [sentence(data.report.headline())],
    ),
    ReportSection[Data](
        anchor="statistics",
        title="Statistics and their spread",
        tables={"statistics": lambda data: estimates_frame(data.report)},
        blocks=_statistics,
    ),
    remarks_section(lambda data: data.report.remarks()),
    ReportSection[Data](anchor="read", title="What was read", blocks=_read),
)
