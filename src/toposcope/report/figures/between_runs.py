"""Correlation of features with the final loss across runs, step by step."""

import numpy as np
import polars as pl

from toposcope.report.figures.chart import INK, Chart, TrainingAxis, legend, new_figure, run_styles, signed
from toposcope.report.headline import TRAJECTORIES, headline_features, named
from toposcope.report.material import Material

MAX_FEATURES = 5
MIN_SPACING_RATIO = 10
"""If the last two common steps are farther apart than the first two by this factor, the axis is logarithmic."""
PANELS = (("", "alone"), ("_given_all", "given loss and controls"))
BAND = "#d8dee4"


def between_runs_chart(material: Material) -> Chart | None:
    """Draw the correlation across runs over the steps for the headline features, with the permutation band."""
    tests, steps = (material.tables[name] for name in ("between_runs", "between_runs_by_step"))
    if not len(tests) or not len(steps):
        return None
    shown = _shown(tests, steps)
    if not shown:
        return None
    at = np.unique(steps.get_column("step").to_numpy())
    spread_out = len(at) > 2 and at[-1] - at[-2] > MIN_SPACING_RATIO * (at[1] - at[0])
    training = TrainingAxis(material.trajectories, material.findings, logarithmic=True) if spread_out else None
    figure = new_figure(3.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (given, title) in zip(panels, PANELS, strict=True):
        band = tests.filter(pl.col("feature").is_in(shown)).get_column(f"band{given}").fill_nan(None).max()
        if isinstance(band, float):
            axes.axhspan(-band, band, color=BAND, linewidth=0, zorder=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        for feature, (colour, marker) in zip(shown, run_styles(), strict=False):
            rows = steps.filter(feature=feature)
            every = max(1, len(rows) // 10)
            axes.plot(
                rows["step"], rows[f"rho{given}"], color=colour, marker=marker, markersize=4.5, markevery=every,
                label=named(feature),
            )  # fmt: skip
        axes.set(title=title, xlabel="training step", ylim=(-1.05, 1.05))
        axes.locator_params(axis="x", nbins=4)
        if training is not None:
            training.scale(axes)
    panels[0].set_ylabel("rho with the final loss")
    legend(figure, panels[0], columns=2)
    summary = " ".join(_describe(row) for f in shown for row in tests.filter(feature=f).iter_rows(named=True))
    n_runs = int(tests.get_column("n_runs").to_numpy().max())
    return Chart(
        "between_runs",
        f"{summary} Spearman's rho across {n_runs} runs of the feature at each step with the final loss of the run, "
        "alone (left) and given the loss and the controls at the same step (right). Grey: 95% of the permutations of "
        "the runs stay within at every step. Gaps: not defined.",
        f"Two panels of rank correlations across {n_runs} runs against training step, one line per feature. {summary}",
        figure,
    )


def _shown(tests: pl.DataFrame, steps: pl.DataFrame) -> list[str]:
    """Choose the headline features that have a correlation at some step; topology comes first."""
    defined = steps.filter(pl.col("rho").is_finite()).get_column("feature").unique(maintain_order=True)
    present = headline_features(defined)
    first = [h.key for h in TRAJECTORIES if h.key in present]
    others = [f for f in present if f not in first and f in set(tests.get_column("feature"))]
    return [*first, *others][:MAX_FEATURES]


def _describe(row: dict[str, float | str]) -> str:
    """Describe a feature: the mean correlation over the steps alone, and given the loss and the controls."""
    alone, given = float(row["rho"]), float(row["rho_given_all"])
    text = f"given loss and controls {signed(given)}" if np.isfinite(given) else "given loss and controls not defined"
    return f"{named(str(row['feature']))}: mean rho {signed(alone)}, {text}."
