"""Points of persistence diagrams followed over training, of the layer that moved most."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import step_axis
from toposcope.homology import Diagram, Vine, vineyard
from toposcope.report.charts.diagrams import moved_most
from toposcope.report.charts.layer_names import in_words, short_names
from toposcope.report.charts.series import spread
from toposcope.report.charts.stored_diagrams import diagrams_of
from toposcope.report.material import Material

MAX_VINES = 40
"""Drawn, those with the longest bars."""
SIZE = (330, 230)
"""Of each of the two panels, in pixels."""
MAX_CHECKPOINTS = 60
"""Of more, these are drawn, evenly spaced in their order: diagrams farther apart are matched."""
MIN_CHECKPOINTS = 3
MAX_POINTS = 5_000
"""Larger diagrams are left out: matching them takes minutes."""


def vineyard_chart(material: Material) -> Chart | None:
    """Draw births and deaths of H1, or of H0 where there are no loops, of the layer that moved most."""
    chosen = moved_most(material)
    if chosen is None:
        return None
    run, layer = chosen
    steps = [int(run.steps[i]) for i in spread(len(run.steps), MAX_CHECKPOINTS)]
    read = {step: d[layer] for step in steps if layer in (d := diagrams_of(material, run.run, step))}
    followed = _followed(read)
    if followed is None:
        return None
    what, diagrams = followed
    vines = vineyard(list(diagrams.values()))
    whole = sum(len(vine.pairs) == len(diagrams) for vine in vines)
    label = in_words(short_names([layer], run.roles)[0])
    title = f"{whole} of {len(vines):,} {what} of {label} of {run.run} go through all {len(diagrams)} checkpoints"
    caption = (
        "A line is a point, the stronger the longer its bar; the cheapest matching of two checkpoints connects them."
    )
    if len(steps) < len(run.steps):
        caption += f" Of {len(run.steps):,} checkpoints, {len(steps)} evenly spaced ones are matched."
    if len(vines) > MAX_VINES:
        caption += f" Drawn are the {MAX_VINES} with the longest bars."
    figure = vineyard_panels(vines, list(diagrams))
    alternative = f"Line charts of births and deaths of persistent homology over training. {title}."
    return Chart("vineyard", title, caption, alternative, figure)


def _followed(read: Mapping[int, Mapping[str, Diagram]]) -> tuple[str, dict[int, Diagram]] | None:
    """Return what the points of the diagrams are that are followed, and the diagrams by step."""
    for name, what in (("H1", "loops"), ("H0", "components")):
        diagrams = {step: found[name] for step, found in read.items() if name in found}
        largest = max((int((diagram.lifetimes > 0).sum()) for diagram in diagrams.values()), default=0)
        if len(diagrams) >= MIN_CHECKPOINTS and 0 < largest <= MAX_POINTS:
            return what, diagrams
    return None


def vineyard_panels(vines: Sequence[Vine], steps: Sequence[int]) -> alt.ConcatChart:
    """Draw a line for each vine, the stronger the longer its longest bar: births in one panel, deaths in the other.

    Parameters
    ----------
    vines : sequence of Vine
        At most 40 are drawn.
    steps : sequence of int
        Of the diagrams they go through.
    """
    shown = sorted(vines, key=lambda vine: -vine.longest)[:MAX_VINES]
    schema = {"vine": pl.Int64, "step": pl.Int64, **dict.fromkeys(("birth", "death", "longest"), pl.Float64)}
    rows = pl.DataFrame(
        [
            (number, steps[vine.start + k], *pair, vine.longest)
            for number, vine in enumerate(shown)
            for k, pair in enumerate(vine.pairs.tolist())
        ],
        schema=schema,
        orient="row",
    )
    strength = alt.Opacity("longest:Q", scale=alt.Scale(range=[0.2, 1]), legend=None)
    hover = ["vine:N", "step:Q", "birth:Q", "death:Q", "longest:Q"]
    panels = [
        alt.Chart(rows)
        .mark_line(strokeWidth=1.4, point={"size": 12})
        .encode(
            x=step_axis(rows),
            y=alt.Y(f"{end}:Q", title=end, scale=alt.Scale(zero=False)),
            detail="vine:N",
            color=alt.datum("vine", type="nominal", legend=None),
            opacity=strength,
            tooltip=hover,
        )
        .properties(width=SIZE[0], height=SIZE[1])
        for end in ("birth", "death")
    ]
    return alt.concat(*panels, columns=2)
