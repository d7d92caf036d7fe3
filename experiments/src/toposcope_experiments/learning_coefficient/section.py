"""How degenerate the loss is around the checkpoints: local learning coefficients, and where there is no estimate."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.extend import (
    Block,
    Chart,
    Feature,
    Picture,
    ReportSection,
    StudyData,
    Terms,
    bands_of,
    counted,
    direction_of,
    examples,
    feature_rows,
    paragraph,
    training_chart,
)
from toposcope_experiments.learning_coefficient.probe import ESTIMATE, NO_ESTIMATE

PROBE = "degeneracy"


def learning_coefficient(data: StudyData) -> Feature | None:
    """Return the first declared estimate; None if no run has one."""
    found = (f for t in data.trajectories for f in t.features if (f.probe, f.statistic) == (PROBE, ESTIMATE))
    return next(found, None)


def degeneracy_chart(data: StudyData) -> Chart | None:
    """Draw the local learning coefficient of every run at the checkpoints that have an estimate."""
    feature = learning_coefficient(data)
    if feature is None:
        return None
    trajectories = [t for t in data.trajectories if feature in t.features]
    rows = feature_rows(trajectories, feature)
    if not len(rows):
        return None
    return training_chart(
        data, "learning-coefficient", rows, f"The local learning coefficient {direction_of(trajectories, feature)}",
        "Bands: two standard errors either side, of the sampling alone. Checkpoints without an estimate are not drawn.",
        "local learning coefficient", what="the local learning coefficient",
        bands=bands_of(trajectories, feature, deviations=2),
    )  # fmt: skip


TERMS = Terms(
    (
        ("local learning coefficient", "n β (E[L(w)] − L(w*)) over draws from exp(−n β L(w) − γ/2 ‖w − w*‖²), β = "
         "1 / ln n, n the predicted tokens of the fixed text, weights in units of their root mean square (Lau et al. "
         "2023). Where the loss is quadratic it is half the number of directions of curvature above γ / (n β). "
         "Metropolis-adjusted chains, half of which start at w* and half at draws of the Gaussian; no estimate where "
         "they disagree, or lie farther below the loss at w* than noise allows."),
    )
)  # fmt: skip


def _without_estimate(data: StudyData) -> pl.DataFrame:
    """Return ``run``, ``step``, ``reason`` of the checkpoints without an estimate."""
    flagged = data.frame.filter(pl.col("flag").str.contains(NO_ESTIMATE), probe=PROBE)
    reason = pl.col("flag").str.split(NO_ESTIMATE).list.last()
    return flagged.select("run", "step", reason=reason).unique(maintain_order=True)


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the chart, and say where there is no estimate."""
    missing = _without_estimate(data)
    if not len(missing):
        return pictures
    places = examples([f"step {step:,} of {run}" for run, step in missing.select("run", "step").iter_rows()])
    note = (
        f"No estimate at {counted(len(missing), 'checkpoint')} ({places}). The first one: {missing.item(0, 'reason')}."
    )
    return (*pictures, paragraph(note, note=True))


def _finding(data: StudyData) -> str:
    feature = learning_coefficient(data)
    if feature is None:
        missing = len(_without_estimate(data))
        return f"no estimate at {counted(missing, 'checkpoint')}" if missing else ""
    return f"the local learning coefficient {direction_of(data.trajectories, feature)}"


SECTION = ReportSection(
    anchor="degeneracy",
    title="Degeneracy",
    position=78,
    charts=(degeneracy_chart,),
    blocks=_blocks,
    finding=_finding,
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
)
