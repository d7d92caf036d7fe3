"""Courses of the features under the four conditions, and how far each changes in the controls."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import TOPOLOGY, UNDETERMINED
from toposcope_experiments.grokking.comparison import ELSEWHERE, MAX_CONTROL_SHARE, NOT_SHOWN, SIGN, Comparison
from toposcope_experiments.grokking.design import CONDITIONS, CONTROLS
from toposcope_experiments.grokking.experiment import CLAIMED, MeasuredRuns, window_of
from toposcope_experiments.grokking.features import FOURIER, KINDS, TWINS
from toposcope_experiments.grokking.page import GrokkingData
from toposcope_experiments.small_networks.course_chart import course_panel, course_rows

ACCURACY = "validation_accuracy"
COLUMNS = 3
CONDITION_NAMES = [condition.name for condition in CONDITIONS]  # in the order of their colours, the same in all charts
PANELS = (ACCURACY, *(name for claimed in CLAIMED for name in (claimed, TWINS[claimed])), FOURIER)
MIN_SHARE, MAX_SHARE = -1.0, 2.0  # shares beyond are drawn at the edge
MARGIN = 0.12
IS = {
    SIGN: "is a sign",
    ELSEWHERE: "changes without it too",
    NOT_SHOWN: "is not shown to be a sign",
    UNDETERMINED: "cannot be judged",
}
"""Verdicts in a title."""


def course_charts(data: GrokkingData) -> list[Chart]:
    """Draw the claimed features and their rival over training: a chart for each architecture."""
    return [_courses(m, c) for m, c in data.both()]


def _courses(measured: MeasuredRuns, comparison: Comparison) -> Chart:
    verdicts = dict(comparison.verdicts.select("feature", "verdict").iter_rows())
    title = (
        f"Generalisation in the {measured.architecture}: {CLAIMED[0]} {IS[verdicts[CLAIMED[0]]]}; "
        f"the {FOURIER} {IS[verdicts[FOURIER]]}"
    )
    return course_chart(measured, PANELS, f"grokking-courses-{measured.architecture}", title)


def course_chart(measured: MeasuredRuns, shown: Sequence[str], name: str, title: str, columns: int = COLUMNS) -> Chart:
    """Draw quantities over training, the validation accuracy first."""
    caption = (
        "Lines: means over runs; bands: from the lowest to the highest run. Dashed: the step by which all runs that "
        "generalise have done so."
    )
    alternative = f"Line charts of {', '.join(shown[1:])} and the validation accuracy against the step. {title}."
    values, places = measured.log | measured.features, {name: measured.places(name) for name in CONDITION_NAMES}
    rows = pl.concat(course_rows(each, values[each], measured.steps, places) for each in shown)
    window = window_of(measured)
    generalised = window[1] if window else None
    panels = [course_panel(rows, each, each.replace("_", " "), CONDITION_NAMES, generalised) for each in shown]
    figure = alt.concat(*panels, columns=columns)
    return Chart(name, title, caption, alternative, figure)


def control_charts(data: GrokkingData) -> list[Chart]:
    """Draw how far each feature changes in the controls: a chart for each architecture that can be compared."""
    return [_controls(m.architecture, c) for m, c in data.both() if len(c.differences)]


def _controls(architecture: str, comparison: Comparison) -> Chart:
    verdicts = dict(comparison.verdicts.select("feature", "verdict").iter_rows())
    topological = [feature for feature, kind in KINDS.items() if kind == TOPOLOGY]
    signs = [feature for feature in topological if verdicts[feature] == SIGN]
    fourier = "the Fourier share is one" if verdicts[FOURIER] == SIGN else "the Fourier share is none"
    some = f"{len(signs)} of {len(topological)} topological features {'is a sign' if len(signs) == 1 else 'are signs'}"
    topology = some if signs else f"No topological feature of {len(topological)} is a sign"
    title = f"{topology} of generalisation in the {architecture}; {fourier}"
    caption = (
        "Change in each control over that in the runs that generalise: a feature with a share of half (dashed) or more "
        f"is no sign of generalisation. Shares below {MIN_SHARE:g} and above {MAX_SHARE:g} are drawn at the edge."
    )
    alternative = f"Dot plot of the changes of {len(KINDS)} features in each control. {title}."
    share = pl.col("control_change") / pl.col("change")
    rows = comparison.differences.with_columns(
        share=share.clip(MIN_SHARE, MAX_SHARE), verdict=pl.col("feature").replace_strict(verdicts)
    ).filter(pl.col("share").is_finite())
    rows = rows.select("feature", "control", "share", "change", "control_change", "p", "verdict")
    x = alt.X(
        "share:Q", title="control's share",
        scale=alt.Scale(domain=[MIN_SHARE - MARGIN, MAX_SHARE + MARGIN], nice=False),
    )  # fmt: skip
    names, legend = alt.Scale(domain=CONDITION_NAMES), alt.Legend(values=[c.name for c in CONTROLS])
    marks = alt.Chart(rows).mark_point(size=70, filled=True, opacity=0.9).encode(
        x=x,
        y=alt.Y("feature:N", title=None, sort=list(KINDS), axis=alt.Axis(grid=True, labelLimit=200)),
        color=alt.Color("control:N", title=None, scale=names, legend=legend),
        shape=alt.Shape("control:N", title=None, scale=names, legend=legend),
        tooltip=[
            "feature:N", "control:N", "verdict:N",
            *(alt.Tooltip(f"{key}:Q", format=".4~g") for key in ("change", "control_change", "p")),
        ],
    )  # fmt: skip
    limit = alt.Chart(pl.DataFrame({"limit": [MAX_CONTROL_SHARE]})).mark_rule(strokeDash=[4, 3]).encode(x="limit:Q")
    figure = alt.LayerChart(layer=[marks, limit]).properties(height=20 * len(KINDS))
    return Chart(f"grokking-controls-{architecture}", title, caption, alternative, figure)
