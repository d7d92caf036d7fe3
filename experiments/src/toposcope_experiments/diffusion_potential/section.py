"""The path of each run through its weights, in the plane of its diffusion potentials and in that of its distances."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import (
    Block,
    Chart,
    Picture,
    ReportSection,
    StudyData,
    Terms,
    folded,
    linked,
    needs_checkpoints,
    needs_probe,
    number_of,
    paragraph,
    path_panels,
    plain,
    share,
    table,
    text_of,
    weight_paths,
)
from toposcope_experiments.diffusion_potential.diffusion_potential import diffusion_potential
from toposcope_experiments.diffusion_potential.metric_scaling import metric_scaling

PROBE = "trajectory"  # of the core: the distances between checkpoints
TABLE, POINTS = "weight_potentials", "weight_potential_points"
TABLE_SCHEMA: dict[str, type[pl.DataType]] = {
    "run": pl.String,
    "mds_stress": pl.Float64,
    "mds_converged": pl.Boolean,
    "potential_time": pl.Int64,
    "potential_floored": pl.Float64,
    "potential_stress": pl.Float64,
    "potential_converged": pl.Boolean,
}
POINTS_SCHEMA: dict[str, type[pl.DataType]] = {
    "run": pl.String,
    "step": pl.Int64,
    **dict.fromkeys(("mds1", "mds2", "potential1", "potential2"), pl.Float64),
}


def potential_tables(frame: pl.DataFrame, labels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one row for each run, and the coordinates of one checkpoint a row.

    ``mds`` is metric scaling of the distances, ``potential`` metric scaling of the distances of diffusion potentials.
    """
    summaries, points = [], []
    for path in weight_paths(frame, labels):
        metric, potential = metric_scaling(path.distances), diffusion_potential(path.distances)
        embedded = metric_scaling(potential.distances())
        summaries.append(
            {
                "run": path.run,
                "mds_stress": metric.stress,
                "mds_converged": metric.converged,
                "potential_time": potential.time,
                "potential_floored": potential.n_floored / potential.operator.size,
                "potential_stress": embedded.stress,
                "potential_converged": embedded.converged,
            }
        )
        # every axis in the direction from the first to the last
        coordinates = np.hstack([p * np.where(p[-1] < p[0], -1.0, 1.0) for p in (metric.points, embedded.points)])
        points += [(path.run, int(step), *row) for step, row in zip(path.steps, coordinates.tolist(), strict=True)]
    return pl.DataFrame(summaries, schema=TABLE_SCHEMA), pl.DataFrame(points, schema=POINTS_SCHEMA, orient="row")


def summaries_of(data: StudyData) -> dict[str, dict[str, Any]]:
    """Return the row of each run that has a path."""
    return {row["run"]: row for row in data.tables[TABLE].to_dicts()}


def potential_chart(data: StudyData) -> Chart | None:
    """Draw each path in the plane that keeps the distances of its diffusion potentials best."""
    summaries = summaries_of(data)
    if not summaries:
        return None
    titles = {
        run: ("first axis (nats)", "second axis (nats)", f"{run}, diffusion time {row['potential_time']}")
        for run, row in summaries.items()
    }
    points = data.tables[POINTS].select("run", "step", x="potential1", y="potential2")
    figure, left_out = path_panels(data, points, titles)
    title = potential_title(data)
    caption = f"Near are checkpoints from which walks over neighbours lead to the same places.{left_out}"
    alternative = f"Path of checkpoints in the plane of their diffusion potentials, one panel per run. {title}."
    return Chart("weight-potentials", title, caption, alternative, figure)


def potential_title(data: StudyData) -> str:
    """Say how well the potentials fit into a plane; empty without a path."""
    stresses = [row["potential_stress"] for row in summaries_of(data).values()]
    return (
        f"Diffusion potentials of the checkpoints lie in a plane up to a stress of {max(stresses):.2g}"
        if stresses
        else ""
    )


TERMS = Terms(
    (
        ("diffusion potential", "−log of the probabilities of walks over neighbouring checkpoints (Moon et al. "
         "2019); probabilities below 1e-7 count as that: the column floored has their share."),
        ("stress", "root mean square error of the distances in the plane, relative to their root mean square "
         "(Kruskal's stress-1)."),
    )
)  # fmt: skip


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw the paths, and list how well they fit into a plane."""
    specs = (
        text_of("run", "run", names_row=True),
        number_of("distances", "mds_stress", lambda value: plain(value, 2), group="stress in a plane"),
        number_of("potentials", "potential_stress", lambda value: plain(value, 2), group="stress in a plane"),
        number_of("floored", "potential_floored", share),
    )
    rows = list(summaries_of(data).values())
    unfinished = [row["run"] for row in rows if not (row["mds_converged"] and row["potential_converged"])]
    note = paragraph(f"Scaling to the plane had not converged for {', '.join(unfinished)}.", note=True)
    return (
        *pictures,
        folded(table(TABLE, "The path of each run in a plane", specs, rows)),
        note if unfinished else None,
        linked(f"All coordinates: {POINTS}.csv.", note=True) if rows else None,
    )


SECTION = ReportSection(
    anchor="diffusion-potential",
    title="Diffusion potentials",
    position=81,
    tables={
        TABLE: lambda data: potential_tables(data.frame, data.labels)[0],
        POINTS: lambda data: potential_tables(data.frame, data.labels)[1],
    },
    charts=(potential_chart,),
    needs=dict.fromkeys((TABLE, POINTS), (needs_probe(PROBE), needs_checkpoints(3))),
    blocks=_blocks,
    finding=potential_title,
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
)
