"""Correlations of features with the loss, alone and given the step."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from toposcope.analysis.wording import joined
from toposcope.probes.feature import TOPOLOGY
from toposcope.report.figures.chart import (
    FAINT,
    INK,
    SMALL,
    Chart,
    choose_runs,
    ink_on,
    new_figure,
    runs_of,
    span,
)
from toposcope.report.headline import CLOUD_STATISTICS, HEADLINES, TARGETS, Headline, cloud_named, headlines_of
from toposcope.report.material import Material
from toposcope.study.kinds import PUBLISHED

MAX_PANELS = 4
COLUMNS = (
    ("rho", "feature"),
    ("rho_step", "step\nalone"),
    ("rho_given_step", "feature\ngiven step"),
    ("rho_given_all", "feature given\nall clocks"),
)
SCALE = ("rho_given_scale", "given step and\ntop eigenvalue")
"""A further column, for features of hidden states only."""
# From the strongest verdict to the weakest; marker and fill distinguish them without colour.
VERDICTS = {
    "beyond trend": ("#D55E00", "D", True),
    "cannot be told": ("#E69F00", "s", True),
    "trend only": ("#0072B2", "o", True),
    "none": ("#57606a", "o", False),
}


def of_network(material: Material) -> pl.DataFrame:
    """Return the rows of the whole network with each run's first target, where rho is defined."""
    first = {t.run: next(iter(t.targets)) for t in material.trajectories if t.targets}
    rows = pl.DataFrame(list(first.items()), schema={"run": pl.String, "target": pl.String}, orient="row")
    table = material.tables["association"].filter(pl.col("rho").is_finite(), pl.col("group") == "network")
    return table.join(rows, on=["run", "target"], how="semi", maintain_order="left")


def _topology(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("kind") == TOPOLOGY)


def association_heat_map(material: Material) -> Chart | None:
    """Draw rank correlations of the headline features, alone and given the clocks."""
    rows = of_network(material)
    states = headlines_of(material.trajectories, CLOUD_STATISTICS)
    names = {h.key: h.name for h in HEADLINES} | {h.key: _of_states(h) for h in states}
    shown_rows = rows.filter(pl.col("feature").is_in(names))
    if not len(shown_rows):
        return None
    features = [f for f in names if f in set(shown_rows.get_column("feature"))]
    with_rows = set(shown_rows.get_column("run"))
    shown, left_out = choose_runs([t for t in material.trajectories if t.run in with_rows], material.runs, MAX_PANELS)
    across = min(2, len(shown))
    down = -(-len(shown) // across)
    columns = (*COLUMNS, SCALE) if _scaled(shown_rows) else COLUMNS
    figure = new_figure(1.9 + down * (0.24 * len(features) + 0.3))
    panels = figure.subplots(down, across, squeeze=False)
    for i, axes in enumerate(panels.flat):
        if i < len(shown):
            _heat_map(axes, shown_rows.filter(run=shown[i].run), features, columns, shown[i].run)
            axes.set_yticks(range(len(features)), [names[f] for f in features] if i % across == 0 else [])
            axes.tick_params(bottom=False, labelbottom=False, labeltop=i < across)
        else:
            axes.set_axis_off()
    colours = mpl.cm.ScalarMappable(mpl.colors.Normalize(-1, 1), "PuOr")
    figure.colorbar(
        colours, ax=panels, label="Spearman's rho with the loss", location="top", fraction=0.02, aspect=40, shrink=0.8,
        ticks=[-1, 0, 1] if len(columns) > len(COLUMNS) else [-1, -0.5, 0, 0.5, 1],
    )  # fmt: skip
    summary = _of_association(rows)
    scale = (
        f" Of {_clouds(states)} also given the step and the top eigenvalue of the same states."
        if len(columns) > len(COLUMNS)
        else ""
    )
    return Chart(
        "association",
        f"{summary} Spearman's rho with the {_targets(rows)}: of the feature, of the step, and of the feature once the "
        "step, or every clock (step, learning rate, weight norm, as far as they are known), is given."
        f"{scale} Hatched: not defined, because the clock ranks the checkpoints as the feature or the loss does."
        f"{left_out}",
        f"Heat map of rank correlations with the loss, one row per feature, one panel per run. {summary}",
        figure,
    )


def _clouds(states: Sequence[Headline]) -> str:
    """Name the clouds of hidden states, each with the word that marks its rows."""
    labels = dict.fromkeys(h.feature.label for h in states)
    return joined([f"{cloud_named(label)} (“{'published' if label == PUBLISHED else 'hidden'}”)" for label in labels])


def _of_states(headline: Headline) -> str:
    """Return a name of a feature of hidden states, short enough for a heat map of five columns."""
    return f"{headline.axis}, {'published' if headline.feature.probe == PUBLISHED else 'hidden'}"


def _targets(rows: pl.DataFrame) -> str:
    return " or ".join(TARGETS.get(name, name) for name in rows.get_column("target").unique(maintain_order=True))


def _of_association(rows: pl.DataFrame) -> str:
    """Describe how many topological features beat the step alone, and how strong they are given the step."""
    rows = _topology(rows)
    both = rows.filter(pl.col("rho_step").is_finite())
    if not len(both):
        return "No topological feature correlates with the loss measurably."
    stronger = both.filter(pl.col("rho").abs() > pl.col("rho_step").abs() + 1e-9)
    given = rows.filter(pl.col("rho_given_step").is_finite())
    text = (
        f"In {len(stronger)} of {len(both)} pairs of run and topological feature the feature ranks the loss better "
        "than the step alone does"
    )
    if not len(given):
        return f"{text}; given the step no rho is defined."
    raw, partial = (float(given.select(pl.col(name).abs().median()).item()) for name in ("rho", "rho_given_step"))
    return f"{text}; the median |rho| of {raw:.2f} becomes {partial:.2f} once the step is given."


def _scaled(rows: pl.DataFrame) -> bool:
    """Return whether any feature has a scale of its own, as those of hidden states have."""
    return "rho_top_eigenvalue" in rows.columns and rows.get_column("rho_top_eigenvalue").is_finite().any()


def _heat_map(
    axes: Axes, rows: pl.DataFrame, features: list[str], columns: Sequence[tuple[str, str]], title: str
) -> None:
    by_feature = {row["feature"]: row for row in rows.iter_rows(named=True)}
    cells = np.array([[by_feature.get(f, {}).get(c, np.nan) for c, _ in columns] for f in features], dtype=float)
    colours = mpl.cm.ScalarMappable(mpl.colors.Normalize(-1, 1), "PuOr").to_rgba
    axes.imshow(cells, cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(cells):
        if np.isfinite(value):
            colour = ink_on(colours(value)[:3])
            text = f"{value:.2f}".replace("-", "−")
            text = _narrow(text) if len(columns) > len(COLUMNS) else text
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=SMALL)
        elif _is_expected(by_feature.get(features[i], {}), columns[j][0]):
            box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="white", edgecolor="#999999", hatch="///", linewidth=0)
            axes.add_patch(box)
    axes.set_xticks(range(len(columns)), [label for _, label in columns], rotation=90)
    axes.set_title(title)
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _narrow(text: str) -> str:
    """Write a correlation in the width that five columns leave."""
    return text.replace("1.00", "1") if text.endswith("1.00") else text.replace("0.", ".")


def _is_expected(row: Mapping[str, Any], column: str) -> bool:
    """Return whether a cell should have a number: the run has the feature, and in the scale column it has a scale."""
    if column == SCALE[0]:
        return np.isfinite(row.get("rho_top_eigenvalue", np.nan)) and not row["feature"].endswith(" top_eigenvalue")
    return bool(row)


def partial_correlation_chart(material: Material) -> Chart | None:
    """Draw the partial correlation given the step against rho, for every feature."""
    rows = of_network(material).filter(pl.col("rho_given_step").is_finite())
    if not len(_topology(rows)):
        return None
    figure = new_figure(3.7)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    is_control = pl.col("kind") != TOPOLOGY
    for axes, title, panel_rows in zip(
        panels,
        ("topology", f"controls (norms, {'spectra' if _scaled(rows) else 'gradients'})"),
        (rows.filter(~is_control), rows.filter(is_control)),
        strict=True,
    ):
        axes.plot([-1, 1], [-1, 1], color=FAINT, linewidth=1, linestyle="--")
        axes.axhline(0, color=INK, linewidth=0.8)
        for verdict, (colour, marker, filled) in reversed(VERDICTS.items()):
            marks = panel_rows.filter(verdict=verdict)
            axes.plot(
                marks["rho"], marks["rho_given_step"], linestyle="none", marker=marker, color=colour, markersize=5,
                markerfacecolor=colour if filled else "none", alpha=0.8, label=verdict,
            )  # fmt: skip
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xlabel="rho with the loss", title=title, aspect="equal")
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    panels[0].set_ylabel("partial rho given the step")
    used = set(rows.get_column("verdict"))
    handles, labels = panels[0].get_legend_handles_labels()
    shown = [(h, label) for h, label in zip(handles, labels, strict=True) if label in used]
    figure.legend([h for h, _ in shown], [label for _, label in shown], loc="outside upper center", ncols=4)
    n_undefined = len(_topology(of_network(material).filter(~pl.col("rho_given_step").is_finite())))
    summary = _of_partial(_topology(rows), n_undefined)
    return Chart(
        "partial",
        f"{summary} Each mark is a feature in a run, against the {_targets(rows)}; on the dashed line the step "
        "explains nothing of the correlation, on the horizontal line all of it. Colour and shape: the verdict.",
        f"Scatter of rho against partial rho given the step, topology and controls apart. {summary}",
        figure,
    )


def _of_partial(rows: pl.DataFrame, n_undefined: int) -> str:
    """Describe how the correlations of topology change given the step, and count the verdicts."""
    strong = rows.filter(pl.col("rho").abs() > 0.5)
    weak = strong.filter(pl.col("rho_given_step").abs() < pl.col("rho").abs() / 2)
    counts = dict(rows.group_by("verdict").len().iter_rows())
    named = [f"{verdict} {counts[verdict]}" for verdict in VERDICTS if verdict in counts]
    halved = (
        f"Given the step, {len(weak)} of {len(strong)} topological correlations with |rho| over 0.5 lose more than half"
        if len(strong)
        else "No topological correlation has |rho| over 0.5"
    )
    left_out = (
        f" {n_undefined} more pairs of run and feature have no partial correlation, because the step ranks the "
        "checkpoints as the feature or the loss does."
        if n_undefined
        else ""
    )
    return f"{halved}; verdicts: {joined(named)}, of {len(rows)}.{left_out}"


def describe_feature(rows: pl.DataFrame, feature: str) -> str:
    """Write the range of a feature's rho over the runs, alone and given the step; for captions."""
    of_feature = rows.filter(feature=feature)
    if not len(of_feature):
        return ""
    given = of_feature.filter(pl.col("rho_given_step").is_finite())
    undefined = len(of_feature) - len(given)
    parts = [f"given the step {span(given['rho_given_step'])}"] if len(given) else []
    if undefined:
        parts.append(
            f"given the step not defined in {runs_of(undefined, len(of_feature))}, ranked as the step ranks them"
        )
    return f"rho {span(of_feature['rho'])}, {', '.join(parts)}"
