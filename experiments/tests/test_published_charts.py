"""Charts of published numbers beside ours."""

import dataclasses
from typing import Any

import msgspec
import pytest
from experiment_material import material
from section_tools import with_tables

from toposcope.charts.chart import Chart
from toposcope_experiments.published_study.charts import published_correlation_charts
from toposcope_experiments.published_study.published import Published
from toposcope_experiments.published_study.reading import published_of


def rows_of(chart: Chart, field: str) -> list[dict[str, Any]]:
    """Return the rows of a chart that have a field."""
    return [row for rows in chart.spec()["datasets"].values() for row in rows if field in row]


def test_published_correlations_stand_beside_ours() -> None:
    of = material(5)
    persistence, h0 = published_correlation_charts(of)
    assert h0.title == "H0 total: the step alone is at least as strong as the published value in all 5 runs"
    claims = published_of(of.declaration)
    assert claims is not None
    rows = {(row["run"], row["source"]): row["rho"] for row in rows_of(h0, "source")}
    assert {run: rho for (run, source), rho in rows.items() if source == "published"} == claims.correlations["H0.total"]
    batch = of.tables["association"].filter(target="batch_loss", feature="rips H0.total", run="run-2")
    assert rows["run-2", "ours, exact"] == batch.item(0, "rho")
    assert rows["run-2", "the step alone"] == batch.item(0, "rho_step")
    assert {(row["low"], row["high"]) for row in rows_of(h0, "low")} == {(-0.95, -0.6)}
    assert "published intervals" in h0.caption
    assert not rows_of(persistence, "low")
    assert h0.render("svg").startswith(b"<svg")


def test_published_runs_that_are_not_here() -> None:
    of = material(2)
    declared = msgspec.structs.replace(
        of.declaration, published=msgspec.to_builtins(Published(correlations={"H0.total": {"other": -0.7}}))
    )
    (chart,) = published_correlation_charts(dataclasses.replace(of, declaration=declared))
    assert {row["run"] for row in rows_of(chart, "source")} == {"other", "run-0", "run-1"}
    nothing = with_tables(of, {"association": of.tables["association"].clear()})
    (chart,) = published_correlation_charts(dataclasses.replace(nothing, declaration=declared))
    assert chart.title == "H0 total: no run of these is measured here"


def test_without_a_publication_there_is_no_chart() -> None:
    of = material(2)
    plain = dataclasses.replace(of, declaration=msgspec.structs.replace(of.declaration, published=None))
    assert published_correlation_charts(plain) == []


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 1), (13, 4)])
def test_small_and_large_studies_are_drawn(runs: int, checkpoints: int) -> None:
    of = material(runs, checkpoints)
    for chart in published_correlation_charts(of):
        assert "nan" not in chart.title + chart.caption
        assert chart.render("svg").startswith(b"<svg")
