"""Correlation of features with the final loss across runs, step by step."""

import altair as alt
import polars as pl

from toposcope.analysis.verdict import LEVEL
from toposcope.charts.axes import zero_line
from toposcope.charts.chart import Chart
from toposcope.charts.training import step_axis
from toposcope.report.headline import TRAJECTORIES, headline_features, named
from toposcope.report.material import Material

MAX_FEATURES = 5
TESTS = {"": ("between-runs", "Alone"), "_given_all": ("between-runs-given", "Given the loss and the controls")}
"""Name and condition of the chart by the ending of the test's columns."""


def between_runs_charts(material: Material) -> list[Chart]:
    """Draw the correlation across runs over the steps with the permutation band: alone, and given loss and controls."""
    tests, steps = (material.tables[name] for name in ("between_runs", "between_runs_by_step"))
    if not len(tests) or not len(steps):
        return []
    features = _features(tests, steps)
    tests, steps = (table.filter(pl.col("feature").is_in(features)) for table in (tests, steps))
    return [_chart(tests, steps, features, given) for given in TESTS] if features else []


def _features(tests: pl.DataFrame, steps: pl.DataFrame) -> list[str]:
    """Choose the headline features that have a correlation at some step; topology comes first."""
    defined = steps.filter(pl.col("rho").is_finite()).get_column("feature").unique(maintain_order=True)
    tested = set(tests.get_column("feature"))
    present = [feature for feature in headline_features(defined) if feature in tested]
    first = [h.key for h in TRAJECTORIES if h.key in present]
    return list(dict.fromkeys([*first, *present]))[:MAX_FEATURES]


def _chart(tests: pl.DataFrame, steps: pl.DataFrame, features: list[str], given: str) -> Chart:
    name, condition = TESTS[given]
    significant = len(tests.filter(pl.col(f"p_adjusted{given}").fill_nan(1.0) < LEVEL))
    n_runs = max(tests.get_column("n_runs"))
    go = "goes" if significant < 2 else "go"
    title = f"{condition}, {significant or 'none'} of {len(features)} features {go} with the final loss"
    caption = (
        f"Rank correlation of the feature at a step with the final loss across {n_runs} runs. Band: 95% of the "
        "permutations of the runs stay within it at every step; gaps: not defined."
    )
    names = {feature: named(feature) for feature in features}
    rows = steps.select("step", pl.col("feature").replace_strict(names), rho=pl.col(f"rho{given}").fill_nan(None))
    band = max(tests.get_column(f"band{given}").drop_nans().drop_nulls(), default=None)
    alternative = f"Line chart of rank correlations across {n_runs} runs against the training step. {title}."
    return Chart(name, title, caption, alternative, _figure(rows, list(names.values()), band))


def _figure(rows: pl.DataFrame, names: list[str], band: float | None) -> alt.LayerChart:
    rho = alt.Y("rho:Q", title="rho with the final loss", scale=alt.Scale(domain=[-1, 1]))
    line = alt.Chart(rows).mark_line(point={"size": 16}, clip=True).encode(
        x=step_axis(rows), y=rho, color=alt.Color("feature:N", title=None, sort=names, legend=alt.Legend(columns=3)),
        tooltip=["feature:N", "step:Q", alt.Tooltip("rho:Q", format="+.3f")],
    )  # fmt: skip
    if not band:
        return alt.LayerChart(layer=[zero_line("y"), line])
    limits = alt.Chart(pl.DataFrame({"low": [-band], "high": [band]}))
    inside = limits.mark_rect(color="gray", opacity=0.18).encode(y="low:Q", y2="high:Q")
    return alt.LayerChart(layer=[inside, zero_line("y"), line])
