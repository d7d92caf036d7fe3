"""Layer by layer: which move, and first; groups of layers and the loss; layers next to random matrices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.layers import onset_table, reference_table
from toposcope.analysis.trajectory import WEIGHT_NORM, Trajectory
from toposcope.analysis.verdict import VERDICTS
from toposcope.charts.chart import Chart
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import primary
from toposcope.report.charts import series
from toposcope.report.document import Block, details, folded, linked
from toposcope.report.headline import H0, NP, headline_features, named
from toposcope.report.not_made import needs_checkpoints, needs_probe
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Column, feature_of, headline_rows, interval_of, numbers, table, text_of
from toposcope.typing import Vector
from toposcope.wording import examples

MIN_UNUSUAL_Z = 3.0  # standard deviations above which an ensemble of random matrices does not explain a layer
BASIS = (
    " Queries, keys and values are measured in a basis of each head that the model does not depend on: another moves"
)
BASIS += " H0 by 0.4 to 69%, neural persistence by 12 to 68%. The probe attention_circuits gives the same in all."
MAX_COLUMNS, MAX_ROWS = 60, 100  # checkpoints and layers of a heat map; of more, as many evenly spread ones are drawn


def layer_heat_maps(data: StudyData) -> list[Chart]:
    """Draw how far each layer of the largest run has moved since the first checkpoint."""
    maps = (
        ("layers-neural-persistence", "Mean neural persistence", "change", _np_change),
        ("layers-h0", "H0 total / weight norm", "change, %", _h0_change),
    )
    return [chart for name, what, axis, change in maps if (chart := _heat_map(data, name, what, axis, change))]


def step_heat_map(rows: pl.DataFrame, row: str, order: Sequence[str], title: str, *, signed: bool) -> alt.LayerChart:
    """Draw a value by row and checkpoint."""
    rows = rows.with_columns(value=pl.when(pl.col("value").is_finite()).then("value"))
    largest = max((abs(value) for value in rows.get_column("value").drop_nulls()), default=1.0) or 1.0
    scale = alt.Scale(range="diverging", domain=[-largest, largest], domainMid=0) if signed else alt.Scale(zero=False)
    base = alt.Chart(rows).encode(
        x=alt.X("step:O", title="training step", axis=alt.Axis(format=",d", labelAngle=0, labelSeparation=8)),
        y=alt.Y(f"{row}:N", title=None, sort=list(order), axis=alt.Axis(labelLimit=160, grid=False)),
        tooltip=[f"{row}:N", alt.Tooltip("step:O", format=",d"), alt.Tooltip("value:Q", format=".4~g", title=title)],
    )
    cells = base.mark_rect().encode(color=alt.Color("value:Q", title=title, scale=scale))
    undefined = base.transform_filter("!isValid(datum.value)")
    height = min(560, 16 * len(order))
    layers = [cells.transform_filter("isValid(datum.value)")]
    if rows.get_column("value").has_nulls():
        layers += [undefined.mark_rect(color="#888", opacity=0.15), undefined.mark_text(text="×", opacity=0.7)]
    return alt.LayerChart(layer=layers).properties(height=height)


def _heat_map(
    data: StudyData, name: str, what: str, axis: str, change: Callable[[Trajectory, str], Vector | None]
) -> Chart | None:
    def changes_of(t: Trajectory) -> dict[str, Vector]:
        every = {layer: change(t, layer) for layer in series.in_order(t)}
        return {layer: v for layer, v in every.items() if v is not None and np.isfinite(v).sum() > 1}

    trajectories = [t for t in data.trajectories if changes_of(t)]
    if not trajectories:
        return None
    run = series.largest_run(trajectories, data.runs)
    changes = changes_of(run)
    labels = dict(zip(changes, series.short_names(list(changes), run.roles), strict=True))
    distances = {layer: abs(v[np.isfinite(v)][-1]) for layer, v in changes.items()}
    most = max(distances, key=distances.__getitem__)
    layers = [list(changes)[i] for i in series.spread(len(changes), MAX_ROWS)]
    columns = series.spread(len(run.steps), MAX_COLUMNS)
    rows = pl.concat(
        pl.DataFrame({"layer": labels[x], "step": run.steps[columns], "value": changes[x][columns]}) for x in layers
    )
    subject = f"{series.in_words(labels[most])} has moved most" if distances[most] > 0 else "no layer has moved"
    title = f"{what}: {subject} by the end of {run.run}"
    cut = len(layers) < len(changes) or len(columns) < len(run.steps)
    shown = f"; {len(layers)} of {len(changes)} layers, {len(columns)} of {len(run.steps)} checkpoints" if cut else ""
    caption = f"Change since the first checkpoint, layer by layer{shown}. Crosses: not defined."
    figure = step_heat_map(rows, "layer", [labels[x] for x in layers], axis, signed=True)
    return Chart(name, title, caption, f"Heat map of layer by training step. {title}.", figure)


def _np_change(trajectory: Trajectory, layer: str) -> Vector | None:
    values = trajectory.layers[layer].get(NP.feature.of_group(layer))
    return None if values is None else values - values[0]


def _h0_change(trajectory: Trajectory, layer: str) -> Vector | None:
    total, norm = (trajectory.layers[layer].get(f.of_group(layer)) for f in (H0.feature, WEIGHT_NORM))
    if total is None or norm is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(100 * (total / norm / (total[0] / norm[0]) - 1))


PAIRS = (("attention", "MLP"), ("early", "late"))


def layer_group_charts(data: StudyData) -> list[Chart]:
    """Draw attention against MLP layers and early against late ones."""
    quantities = (
        ("neural-persistence", "neural persistence", NP.axis, _np_of),
        ("h0", "growth of H0 total", "H0 total (first checkpoint: 1)", _h0_growth),
    )
    return [
        chart
        for pair in PAIRS
        for name, what, axis, value in quantities
        if (chart := _pair_chart(data, pair, name, what, axis, value)) is not None
    ]


def _pair_chart(
    data: StudyData, pair: tuple[str, str], name: str, what: str, axis: str,
    value: Callable[..., Vector | None],
) -> Chart | None:  # fmt: skip
    both = [t for t in data.trajectories if all(value(t, group) is not None for group in pair)]
    ends = {t.run: [series.first_last(v) for group in pair if (v := value(t, group)) is not None] for t in both}
    last = {run: (a[1], b[1]) for run, (a, b) in ends.items() if a and b}
    if not last:
        return None
    above, below = sum(a > b for a, b in last.values()), sum(a < b for a, b in last.values())
    one, other = pair if above or not below else pair[::-1]
    where = series.runs_of(above or below or len(last), len(last)) if len(last) > 1 else next(iter(last))
    how = "ends above that" if above or below else "ends equal to that"
    title = f"The {what} of {one} layers {how} of {other} layers in {where}"
    rows = series.series_of(both, {group: partial(value, group=group) for group in pair})
    caption = f"Solid: {pair[0]} layers; dashed: {pair[1]} layers."
    return series.training_chart(
        data, f"groups-{pair[0]}-{pair[1].lower()}-{name}", rows, title, caption, axis,
        what=f"the {what} of {one} and {other} layers", dashes=pair,
    )  # fmt: skip


def _np_of(trajectory: Trajectory, group: str) -> Vector | None:
    return trajectory.groups.get(group.lower(), {}).get(NP.feature.of_group(group.lower()))


def _h0_growth(trajectory: Trajectory, group: str) -> Vector | None:
    values = trajectory.groups.get(group.lower(), {}).get(H0.feature.of_group(group.lower()))
    known = np.empty(0) if values is None else values[np.isfinite(values)]
    return None if values is None or not len(known) or not known[0] > 0 else values / known[0]


STATISTICS = {
    "np_mean": ("neural-persistence", "neural persistence", "mean neural persistence"),
    "H0.total": ("h0", "H0 total", "H0 total / weight norm"),
}
MAX_LAYERS = 18


def random_matrix_charts(data: StudyData) -> list[Chart]:
    """Draw the first and the last value of every layer of the largest run next to random matrices."""
    table = data.tables["references"]
    if not (trajectories := series.runs_in(data, table)):
        return []
    run = series.largest_run(trajectories, data.runs)
    layers = table.filter(run=run.run).get_column("layer").unique(maintain_order=True).to_list()
    kept = [layers[i] for i in series.spread(len(layers), MAX_LAYERS)]
    names = dict(zip(kept, series.short_names(kept, run.roles), strict=True))
    left_out = f" ({len(kept)} of its {len(layers)} layers)" if len(kept) < len(layers) else ""
    charts = []
    for statistic, (stem, what, axis) in STATISTICS.items():
        rows = table.filter(pl.col("layer").is_in(kept), run=run.run, statistic=statistic)
        if len(rows):
            title = f"By {what}, {unusual(table.filter(statistic=statistic))}"
            caption = (
                f"{run.run}{left_out}; circle: first checkpoint, dot: last. Coloured: random matrices of its shape, "
                "mean and 2 standard deviations."
            )
            text = f"Dot chart of layers next to random matrices. {title}."
            charts.append(Chart(f"references-{stem}", title, caption, text, _figure(rows, names, axis)))
    return charts


def unusual(rows: pl.DataFrame) -> str:
    """Count the layers of all runs that no ensemble explains at the last checkpoint, of those with a known distance."""
    known = rows.with_columns(pl.col("z_last").fill_nan(None)).drop_nulls("z_last")
    far = (pl.col("z_last").abs() > MIN_UNUSUAL_Z).all()
    layers = known.group_by("run", "layer").agg(far=far).get_column("far")
    if not len(layers):
        return "no layer can be compared with random matrices at the end"
    return f"{layers.sum()} of {len(layers)} layers end unlike every kind of random matrix"


def _figure(rows: pl.DataFrame, names: dict[str, str], axis: str) -> alt.LayerChart:
    rows = rows.with_columns(
        pl.col("layer").replace_strict(names), pl.col("ensemble").str.replace_all("_", " "),
        low=pl.col("mean") - 2 * pl.col("sd"), high=pl.col("mean") + 2 * pl.col("sd"),
    )  # fmt: skip
    layer = alt.Y("layer:N", title=None, sort=list(names.values()), axis=alt.Axis(labelLimit=160))
    random = alt.Chart(rows.select("layer", "ensemble", "mean", "low", "high")).encode(
        y=layer, yOffset="ensemble:N", color=alt.Color("ensemble:N", title=None),
        tooltip=["layer:N", "ensemble:N", "mean:Q", "low:Q", "high:Q"],
    )  # fmt: skip
    own = alt.Chart(rows.select("layer", "first", "last").unique("layer", maintain_order=True)).encode(
        y=layer, tooltip=["layer:N", "first:Q", "last:Q"]
    )
    x = alt.X("mean:Q", title=axis, scale=alt.Scale(zero=False))
    return alt.LayerChart(
        layer=[
            random.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=axis), x2="high:Q"),
            random.mark_point(filled=True, size=26, opacity=1).encode(x=x),
            own.mark_rule().encode(x="first:Q", x2="last:Q"),
            own.mark_point(filled=False, size=60, color="#888").encode(x="first:Q"),
            own.mark_point(filled=True, size=60, color="#888", opacity=1).encode(x="last:Q"),
        ]
    ).properties(height=34 * len(names))


WITHIN = 2.0  # standard deviations within which a value is that of a random matrix


def _moved_first(data: StudyData) -> Iterable[Block | None]:
    """List the layers that left their first value first."""
    frame = data.tables["layer_onsets"]
    if not len(frame):
        return ()
    rows = (
        frame.filter("moves")
        .group_by("feature", "run", maintain_order=True)
        .agg(
            layers=pl.col("layer").filter("is_first"), first=pl.col("step").min(), last=pl.col("step").max(), n=pl.len()
        )
        .with_columns(pl.col("layers").map_elements(examples, return_dtype=pl.String))
    )
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        text_of("first to move", "layers"),
        *numbers(whole={"by step": "first", "last layer by step": "last", "layers that move": "n"}),
    )
    return (
        linked(
            "A layer has moved when it is more than half of its largest departure away from its first value, at two "
            "checkpoints in a row. Every layer: layer_onsets.csv.",
        ),
        folded(table("layer-onsets", "Which layers move first", specs, headline_rows(rows))),
    )  # fmt: skip


def _groups(data: StudyData) -> Iterable[Block | None]:
    """Compare attention with MLP layers, early with late blocks, and roles with one another."""
    rows = primary(data).filter(pl.col("group") != NETWORK, pl.col("rho").is_finite())
    groups = {group: place for place, group in enumerate(rows.get_column("group").unique(maintain_order=True))}
    summed = rows.group_by("group", "feature", maintain_order=True).agg(
        n=pl.len(),
        rho=pl.col("rho").median(),
        low=pl.col("rho").min(),
        high=pl.col("rho").max(),
        given=pl.col("rho_given_step").fill_nan(None).median(),
        verdicts=pl.col("verdict"),
    )
    specs = (
        feature_of(),
        text_of("layers", "group", names_row=True),
        *numbers(whole={"runs": "n"}),
        *numbers("rho with the loss, over runs", signed={"median": "rho"}),
        interval_of("range", "low", "high", group="rho with the loss, over runs"),
        *numbers("given the step", signed={"median": "given"}),
        (Column("verdicts", True), lambda row: _counted(row["verdicts"])),
    )
    order = headline_features(summed.get_column("feature"))
    shown = sorted(headline_rows(summed), key=lambda row: (order.index(row["feature"]), groups[row["group"]]))
    summary_table = table("layers", "Association with the loss by group of layers", specs, shown)
    table_folded = details(f"By role, attention against MLP, early against late ({len(shown)} rows)", summary_table)
    basis = BASIS if {"attn.q", "attn.k", "attn.v", "attn.qkv"} & groups.keys() else ""
    note = linked(f"All features of all groups, run by run: association.csv.{basis}", note=True)
    return (table_folded, note if summary_table else None)


def _against_random(data: StudyData) -> Iterable[Block | None]:
    """Compare layers with random matrices of the same shapes."""
    frame = data.tables["references"]
    if not len(frame):
        return ()
    near = f"within {WITHIN:g} sd"
    specs = (
        text_of("ensemble", "ensemble", names_row=True),
        text_of("statistic", "statistic", names_row=True),
        *numbers(whole={"values": "n"}),
        *numbers("first checkpoint", tenths={"median |z|": "first"}, share={near: "first_within"}),
        *numbers("last checkpoint", tenths={"median |z|": "last"}, share={near: "last_within"}),
    )
    z = {when: pl.col(f"z_{when}").fill_nan(None).abs() for when in ("first", "last")}
    summed = frame.group_by("ensemble", "statistic", maintain_order=True).agg(
        n=pl.len(),
        **{when: value.median() for when, value in z.items()},
        **{f"{when}_within": (value <= WITHIN).mean() for when, value in z.items()},
    )
    return (
        linked(
            "z: the distance of a layer from random matrices of its shape and scale in standard deviations, one value "
            "per run and layer. All: references.csv.",
        ),
        table("references", "Layers compared with random matrices of their shape", specs, summed.to_dicts()),
    )  # fmt: skip


def _finding(data: StudyData) -> str:
    """Say which role of layers, or layer without a role, moves first in most runs, by the first quantity measured."""
    if not len(frame := data.tables["layer_onsets"]):
        return ""
    first = frame.filter("is_first", feature=frame.item(0, "feature")).with_columns(
        role=pl.when(pl.col("role").is_in(["", "other"])).then("layer").otherwise("role")
    )
    roles = first.group_by("role").agg(n=pl.col("run").n_unique()).sort("n", "role", descending=[True, False])
    role, n = roles.row(0)
    alone = first.filter((pl.col("role") == role).all().over("run")).get_column("run").n_unique() == n
    how = "moves first" if alone else "is among the first layers to move"
    by = "neural persistence" if (feature := first.item(0, "feature")) == NP.key else named(feature)
    return f"By {by}, {role} {how} in {series.runs_of(n, first.get_column('run').n_unique())}"


def _counted(verdicts: Sequence[str]) -> str:
    counts = {v: verdicts.count(v) for v in VERDICTS}
    return ", ".join(f"{verdict} {n}" for verdict, n in counts.items() if n)


SECTION = ReportSection(
    anchor="layers",
    title="Layers",
    position=100,
    position_on=lambda data: 24 if data.is_own_run else 100,
    tables={
        "layer_onsets": lambda data: onset_table(data.trajectories, [NP.feature, H0.feature]),
        "references": lambda data: reference_table(data.trajectories),
    },
    charts=(layer_heat_maps, layer_group_charts, random_matrix_charts),
    needs={
        "layer_onsets": (needs_probe("neural_persistence", "rips"), needs_checkpoints(MIN_CHECKPOINTS)),
        "references": (needs_probe("random_matrices"),),
    },
    blocks=lambda data, pictures: (*pictures, *_moved_first(data), *_groups(data), *_against_random(data)),
    finding=_finding,
)
