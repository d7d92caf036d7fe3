"""The Hessian of the loss over training: largest eigenvalues, trace and density, each with its error."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.report.charts.curvature import (
    PROBE,
    TABLE,
    curvature_rows,
    density_chart,
    eigenvalue_chart,
    sharpness_title,
    trace_chart,
)
from toposcope.report.document import Block, Picture, Terms, csv, folded, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import number_of, plain, share, table, text_of, whole

COLUMNS = {
    "sharpness": "sharpness",
    "smallest_eigenvalue": "smallest eigenvalue",
    "trace": "trace",
    "filter_normalised_sharpness": "filter-normalised sharpness",
}
SHARES = {"positive_share": "positive", "negative_share": "negative"}
TERMS = Terms(
    (
        ("sharpness", "the largest eigenvalue of the Hessian of the mean loss on the fixed text, summed over tokens. "
         "It depends on the scale of the weights."),
        ("filter-normalised sharpness", "the same in units of the filters, the incoming weights of each neuron (Li et "
         "al. 2018): unchanged if one layer is multiplied and the next divided."),
        ("error", "of an eigenvalue the residual ‖Hv − λv‖; of the trace the standard error; of a share of the "
         "density the standard error and the change from half of the steps to all."),
    )
)  # fmt: skip


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw the spectra, and list those of the last checkpoints with their errors."""
    rows = material.tables[TABLE]
    if not len(rows):
        return pictures
    last = rows.filter(pl.col("step") == pl.col("step").max().over("run"))
    listed = [
        dict.fromkeys(name + suffix for name in (*COLUMNS, *SHARES) for suffix in ("", "_error"))
        | {"run": run[0], "step": group["step"][0]}
        | {row["statistic"]: row["value"] for row in group.iter_rows(named=True)}
        | {f"{row['statistic']}_error": row["error"] for row in group.iter_rows(named=True)}
        for run, group in last.group_by("run", maintain_order=True)
    ]
    specs = (
        text_of("run", "run", names_row=True),
        number_of("step", "step", whole),
        *(
            number_of(title, key, plain, group=group)
            for name, group in COLUMNS.items()
            for title, key in (("value", name), ("error", f"{name}_error"))
        ),
        *(
            number_of(title, key, share, group=f"{group} eigenvalues")
            for name, group in SHARES.items()
            for title, key in (("share", name), ("error", f"{name}_error"))
        ),
    )
    caption = "The Hessian at the last checkpoint of each run"
    return (
        *pictures,
        folded(table(TABLE, caption, specs, listed), caption),
        say("All checkpoints: ", csv(TABLE), ".", note=True),
    )


SECTION = ReportSection(
    anchor="curvature",
    title="Curvature",
    position=82,
    tables={TABLE: curvature_rows},
    charts=(eigenvalue_chart, trace_chart, density_chart),
    compared_charts=(eigenvalue_chart,),
    blocks=_blocks,
    finding=sharpness_title,
    methods=lambda material: [TERMS] if PROBE in material.labels.get_column("probe") else [],
)
