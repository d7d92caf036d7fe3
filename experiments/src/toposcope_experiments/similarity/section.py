"""How alike hidden states are: between layers, and between checkpoints."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from toposcope.extend import (
    NETWORK,
    Chart,
    ReportSection,
    StudyData,
    Terms,
    choose_runs,
    direction_of,
    largest_run,
    runs_in,
    spread,
)

PROBE = "similarity"
MEASURES = {"cka": "CKA", "procrustes": "Procrustes distance", "rtd": "RTD"}
SELF_SIMILARITY = {"cka": 1.0, "procrustes": 0.0, "rtd": 0.0}
"""The similarity of a representation to itself, which is known without measuring."""
MAX_RUNS = 2
MAX_CHECKPOINTS = 40  # of more checkpoints, these are drawn, evenly spaced in their order
SIZE = 250  # of a matrix, in pixels
LAST = "last"


def layer_similarity_charts(data: StudyData) -> list[Chart]:
    """Draw the similarity between layers of the largest run, at its first and last checkpoint: a chart per measure."""
    rows = _rows(data).filter(pl.col("other").str.contains(rf"^(hidden\.|{NETWORK}$)"))
    if not (trajectories := runs_in(data, rows)):
        return []
    run = largest_run(trajectories, data.runs).run
    step = pl.col("step")
    rows = rows.filter(run=run).filter((step == step.min()) | (step == step.max()))
    rows = rows.select("step", "measure", "value", a=_depth("layer"), b=_depth("other"))
    present = [measure for measure in MEASURES if measure in set(rows.get_column("measure"))]
    return [_of_layers(rows.filter(measure=measure), measure, run) for measure in present]


def _of_layers(rows: pl.DataFrame, measure: str, run: str) -> Chart:
    """Compare the layers of a run by one measure."""
    cells = _symmetric(rows, measure, ["step"])
    names = sorted(set(cells.get_column("a")), key=lambda name: (name == LAST, int(name) if name != LAST else 0))
    ends = cells.filter(a=names[0], b=names[-1]).sort("step").get_column("value").to_list()
    title = f"{MEASURES[measure]}: the first and the last hidden state of {run} {_become(ends, measure)}"
    steps = cells.get_column("step").unique().sort()
    cells = cells.with_columns(checkpoint=pl.format("step {}", "step")).drop("step")
    caption = f"Layer by layer on the same texts at a checkpoint; 0: the embedding, {LAST}: behind the last block."
    figure = _matrices(cells, measure, "checkpoint", [f"step {step}" for step in steps], names, "layer")
    alternative = f"Heat map of the similarity of layers to each other. {title}."
    return Chart(f"layers-{measure}", title, caption, alternative, figure)


def checkpoint_similarity_charts(data: StudyData) -> list[Chart]:
    """Draw the similarity of the last hidden state between any two checkpoints: a chart per measure."""
    rows = _rows(data).filter(pl.col("other").str.starts_with("step."), layer=NETWORK)
    shown, left_out = choose_runs(runs_in(data, rows), data.runs, MAX_RUNS)
    names = [t.run for t in shown]
    earlier = pl.col("other").str.strip_prefix("step.").cast(pl.Int64)
    rows = rows.filter(pl.col("run").is_in(names)).select("run", "measure", "value", a="step", b=earlier)
    present = [measure for measure in MEASURES if measure in set(rows.get_column("measure"))]
    return [_of_checkpoints(rows.filter(measure=measure), measure, names, left_out) for measure in present]


def _of_checkpoints(rows: pl.DataFrame, measure: str, runs: list[str], left_out: str) -> Chart:
    """Compare the checkpoints of each run by one measure."""
    cells = _symmetric(rows, measure, ["run"])
    title = f"{MEASURES[measure]}: {_largest_change(cells, measure)}"
    drawn = pl.concat([_evenly_spaced(cells.filter(run=run)) for run in runs])
    fewer = f" {MAX_CHECKPOINTS} checkpoints of a run are shown." if len(drawn) < len(cells) else ""
    caption = (
        f"The last hidden state at one checkpoint against that at another, in order, not to scale.{left_out}{fewer}"
    )
    steps = drawn.get_column("a").unique().sort().to_list()
    figure = _matrices(drawn, measure, "run", runs, steps, "training step")
    alternative = f"Heat map of the similarity of checkpoints to each other. {title}."
    return Chart(f"checkpoints-{measure}", title, caption, alternative, figure)


def _rows(data: StudyData) -> pl.DataFrame:
    """Return ``run, step, layer, measure, other, value`` of the first declared similarity probe."""
    parts = pl.col("statistic").str.splitn("@", 2)
    options = data.labels.filter(probe=PROBE).get_column("options").to_list()[:1]
    return (
        data.frame.filter(pl.col("options").is_in(options), pl.col("value").is_finite(), probe=PROBE)
        .with_columns(measure=parts.struct[0], other=parts.struct[1])
        .filter(pl.col("measure").is_in(list(MEASURES)), ~pl.col("other").str.ends_with(".noise"))
        .select("run", "step", "layer", "measure", "other", "value")
    )


def _depth(column: str) -> pl.Expr:
    """Return the number of blocks passed as text, or "last"."""
    number = pl.col(column).str.extract(r"(\d+)$").cast(pl.Int64).cast(pl.String)
    return pl.when(pl.col(column) == NETWORK).then(pl.lit(LAST)).otherwise(number)


def _symmetric(rows: pl.DataFrame, measure: str, index: list[str]) -> pl.DataFrame:
    """Return every pair both ways round, and each with itself."""
    pairs = rows.select(*index, "a", "b", "value")
    mirrored = pairs.select(*index, a="b", b="a", value="value")
    own = pl.concat([pairs, mirrored]).select(*index, "a", b="a", value=pl.lit(SELF_SIMILARITY[measure]))
    return pl.concat([pairs, mirrored, own]).unique([*index, "a", "b"], keep="first", maintain_order=True)


def _evenly_spaced(cells: pl.DataFrame) -> pl.DataFrame:
    steps = cells.get_column("a").unique().sort()
    kept = steps.gather(spread(len(steps), MAX_CHECKPOINTS)).implode()
    return cells.filter(pl.col("a").is_in(kept), pl.col("b").is_in(kept))


def _matrices(
    cells: pl.DataFrame, measure: str, panel: str, panels: list[str], names: Sequence[Any], axis: str
) -> alt.FacetChart:
    alike = "1" if SELF_SIMILARITY[measure] else "0"
    colour = alt.Color(
        "value:Q", title=f"{MEASURES[measure]} ({alike}: same)", scale=alt.Scale(reverse=not SELF_SIMILARITY[measure]),
        legend=alt.Legend(gradientLength=160),
    )  # fmt: skip
    matrix = alt.Chart(cells).mark_rect().encode(
        x=alt.X("a:O", title=axis, sort=list(names), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("b:O", title=axis, sort=list(names)),
        color=colour,
        tooltip=[f"{panel}:N", "a:O", "b:O", alt.Tooltip("value:Q", format=".3~f")],
    )  # fmt: skip
    facets = matrix.properties(width=SIZE, height=SIZE).facet(
        alt.Facet(f"{panel}:N", sort=panels, title=None), columns=2
    )
    figure: alt.FacetChart = facets.resolve_scale(x="independent", y="independent")
    return figure


def _become(ends: list[float], measure: str) -> str:
    """Say whether two layers become more or less alike from the first checkpoint to the last."""
    if len(ends) < 2 or ends[0] == ends[-1]:
        return "stay as alike as they are" if len(ends) > 1 else "at one checkpoint"
    return f"become {'more' if (ends[-1] > ends[0]) == bool(SELF_SIMILARITY[measure]) else 'less'} alike"


def _largest_change(cells: pl.DataFrame, measure: str) -> str:
    """Name the two neighbouring checkpoints that differ most."""
    changes = []
    for (run,), rows in cells.group_by("run", maintain_order=True):
        known = {(a, b): value for a, b, value in rows.select("a", "b", "value").iter_rows()}
        neighbours = [pair for pair in pairwise(sorted({a for a, _ in known})) if pair in known]
        changes += [(abs(known[pair] - SELF_SIMILARITY[measure]), run, *pair) for pair in neighbours]
    if not changes:
        return "no two neighbouring checkpoints are compared"
    _, run, before, after = max(changes, key=lambda change: change[0])
    return f"the last hidden state changes most between steps {before:,} and {after:,} of {run}"


FIRST = "cka.first"  # the statistic that compares a checkpoint's last hidden state with that of the first checkpoint


def _finding(data: StudyData) -> str:
    """Say whether hidden states move away from those of the first checkpoint."""
    features = dict.fromkeys(f for t in data.trajectories for f in t.features if f.statistic == FIRST)
    for feature in features:
        return f"CKA of hidden states with the first checkpoint {direction_of(data.trajectories, feature)}"
    return ""


TERMS = Terms(
    (
        ("similarity", "of the same texts, point by point: linear CKA (Kornblith et al. 2019), 1 for alike; orthogonal "
         "Procrustes distance, and representation topology divergence, RTD (Barannikov et al. 2022), 0 for alike."),
    )
)  # fmt: skip


SECTION = ReportSection(
    anchor="similarity",
    title="Similarity",
    position=70,
    charts=(layer_similarity_charts, checkpoint_similarity_charts),
    finding=_finding,
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
)
