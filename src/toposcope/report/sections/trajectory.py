"""The path of each run through its weights, and the points of a diagram along it."""

from collections.abc import Iterable, Sequence

from toposcope.analysis.weight_paths import PROBE, path_tables, weight_paths
from toposcope.report.charts.vineyards import vineyard_chart
from toposcope.report.charts.weight_paths import (
    POINTS,
    SUMMARIES,
    component_chart,
    component_title,
    potential_chart,
    summaries_of,
)
from toposcope.report.document import Block, Picture, Terms, csv, folded, say
from toposcope.report.material import Material
from toposcope.report.section import Charts, ReportSection
from toposcope.report.tables import number_of, plain, share, table, text_of, whole

TERMS = Terms(
    (
        ("path", "the checkpoints of a run as points: all entries of the analysed layers in one long vector. All "
         "numbers follow from the exact distances between them."),
        ("random walk", "shares of the principal components of independent steps of the same lengths, in infinitely "
         "many dimensions (Antognini & Sohl-Dickstein 2018); of n equal steps, as 1 / (4 sin² (πk / 2n)). 61% in PC1 "
         "is no structure."),
        ("diffusion potential", "−log of the probabilities of walks over neighbouring checkpoints (Moon et al. "
         "2019); probabilities below 1e-7 count as that: the column floored has their share."),
        ("stress", "root mean square error of the distances in the plane, relative to their root mean square "
         "(Kruskal's stress-1)."),
    )
)  # fmt: skip


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw the paths, and list their lengths and shares."""
    specs = (
        text_of("run", "run", names_row=True),
        number_of("checkpoints", "n_checkpoints", whole),
        number_of("length", "path_length", plain),
        number_of("from the first", "displacement", plain),
        number_of("ratio", "straightness", lambda value: plain(value, 3)),
        *(
            number_of(title, f"pc{k}_{name}", share, group=f"variance in PC{k}")
            for k in (1, 2)
            for title, name in (("share", "share"), ("walk", "walk_same_steps"), ("equal steps", "walk"))
        ),
        number_of("distances", "mds_stress", lambda value: plain(value, 2), group="stress in a plane"),
        number_of("potentials", "potential_stress", lambda value: plain(value, 2), group="stress in a plane"),
        number_of("floored", "potential_floored", share),
    )
    rows = list(summaries_of(material).values())
    caption = "The path of each run through its weights"
    unfinished = [row["run"] for row in rows if not (row["mds_converged"] and row["potential_converged"])]
    return (
        *pictures,
        folded(table(SUMMARIES, caption, specs, rows), caption),
        say(f"Scaling to the plane had not converged for {', '.join(unfinished)}.", note=True) if unfinished else None,
        say("All coordinates: ", csv(POINTS), ".", note=True) if rows else None,
    )


def _vineyard(material: Material) -> Charts:
    """Draw the vineyard where paths were measured."""
    return vineyard_chart(material) if summaries_of(material) else None


def _finding(material: Material) -> str:
    rows = list(summaries_of(material).values())
    return component_title(rows) if rows else ""


SECTION = ReportSection(
    anchor="trajectory",
    title="Trajectory",
    position=80,
    tables={
        SUMMARIES: lambda material: path_tables(weight_paths(material.frame, material.labels))[0],
        POINTS: lambda material: path_tables(weight_paths(material.frame, material.labels))[1],
    },
    charts=(component_chart, potential_chart, _vineyard),
    blocks=_blocks,
    finding=_finding,
    methods=lambda material: [TERMS] if PROBE in material.labels.get_column("probe") else [],
)
