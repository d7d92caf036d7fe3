"""Charts of published numbers beside ours."""

import dataclasses
import re
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from experiment_material import material, with_states
from named_features import by_feature
from section_tools import with_tables

from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.chart import Chart
from toposcope.report.charts.states import representation_charts
from toposcope_experiments.published_study.charts import (
    published_correlation_charts,
    published_state_charts,
    trace_charts,
)
from toposcope_experiments.published_study.published import Published, Trace
from toposcope_experiments.published_study.reading import published_of
from toposcope_experiments.published_study.sections.predictions import prediction_charts


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


def test_topology_in_a_forecast_is_compared_with_the_last_value() -> None:
    published, exact = prediction_charts(material(5))
    for chart in (published, exact):
        assert re.search(r"at 30% seen the blend errs by 0\.\d\d, without topology by 0\.\d\d$", chart.title)
        assert "over 5 runs" in chart.caption
        assert chart.render("svg").startswith(b"<svg")
    assert "squares: published errors" in published.caption
    assert "squares" not in exact.caption
    blend = {
        row["fraction"]: row["error"] for row in rows_of(exact, "error") if row["forecaster"] == "loss and topology"
    }
    assert blend == pytest.approx({0.2: 0.17, 0.3: 0.24, 0.5: 0.18})


def test_forecasts_are_compared_on_the_runs_that_have_all_of_them() -> None:
    full = material(3)
    predictions = full.tables["predictions"]
    without = predictions.filter(~((pl.col("run") == "run-0") & pl.col("forecaster").str.contains("tda|combined$")))
    there = prediction_charts(with_tables(full, {"predictions": without}))[0]
    kept = prediction_charts(with_tables(full, {"predictions": predictions.filter(pl.col("run") != "run-0")}))[0]
    assert there.spec() == kept.spec()
    assert "over 2 runs" in there.caption


def test_blends_that_never_meet_at_one_share_are_not_compared() -> None:
    full = material(3)
    at = {"paper_combined": 0.2, "paper_combined_without_topology": 0.5}
    apart = full.tables["predictions"].filter(
        pl.col("fraction") == pl.col("forecaster").replace_strict(at, default=0.3)
    )
    for chart in prediction_charts(with_tables(full, {"predictions": apart})):
        assert ": the least error is that of " in chart.title


def test_a_trace_measured_here_is_drawn_beside_the_published_one() -> None:
    full = material(2)
    elsewhere = dataclasses.replace(full.trajectories[0], run="elsewhere")
    persistence, h0 = trace_charts(dataclasses.replace(full, trajectories=[elsewhere, *full.trajectories]))
    assert h0.title == "H0 total falls in the run as published; rises in the run here"
    assert persistence.title == "Mean neural persistence rises in the run as published; rises in the run here"
    assert {row["series"] for row in rows_of(h0, "series")} >= {"as published", "ours, exact"}
    assert h0.render("svg").startswith(b"<svg")


def test_a_trace_of_a_run_that_is_not_here() -> None:
    _, h0 = trace_charts(material(2))
    assert h0.title == "H0 total falls in the run as published; it is not measured here"


def test_imported_values_without_weights_are_a_trace() -> None:
    full = material(1)
    steps = np.array([0, 10, 1000])
    values = by_feature({"published np_mean": np.array([0.3, 0.4, 0.5])})
    bare = Trajectory("told", steps, values, {}, {"step": steps.astype(float)})
    persistence, _ = trace_charts(dataclasses.replace(full, trajectories=[*full.trajectories, bare]))
    assert [row["value"] for row in rows_of(persistence, "series") if row["run"] == "told"] == [0.3, 0.4, 0.5]


def test_a_quantity_that_is_not_drawn_is_not_named() -> None:
    full = material(1)
    trace = Trace(steps=[0, 10], values={"np_mean": [0.3, 0.4], "H1.total": [1.0, 0.0]})
    declared = msgspec.structs.replace(
        full.declaration, published=msgspec.to_builtins(Published(traces={"elsewhere": trace}))
    )
    (chart,) = trace_charts(dataclasses.replace(full, declaration=declared))
    assert "H1" not in chart.title + chart.caption + chart.alt


@pytest.mark.parametrize("draw", [published_correlation_charts, prediction_charts, trace_charts])
def test_without_a_publication_there_is_no_chart(draw: Any) -> None:
    of = material(2)
    plain = dataclasses.replace(of, declaration=msgspec.structs.replace(of.declaration, published=None))
    assert draw(with_tables(plain, {"predictions": of.tables["predictions"].clear()})) == []


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 1), (13, 4)])
def test_small_and_large_studies_are_drawn(runs: int, checkpoints: int) -> None:
    of = material(runs, checkpoints)
    for chart in (*published_correlation_charts(of), *prediction_charts(of), *trace_charts(of)):
        assert "nan" not in chart.title + chart.caption
        assert chart.render("svg").startswith(b"<svg")


def test_published_states_have_charts_beside_ours() -> None:
    study = with_states(material(3))
    ours, *others = study.trajectories
    features = by_feature({f"published {f.statistic}": values for f, values in ours.features.items()})
    told = dataclasses.replace(ours, run="elsewhere", features=features, noise={}, clouds={"published": "published"})
    both = dataclasses.replace(study, trajectories=[ours, *others, told])
    beside = published_state_charts(both)
    assert len(beside) == len(representation_charts(both)) == 8
    assert beside[0].title.startswith("RankMe of the published hidden states ends lower in the run, after a dip")
    assert beside[0].caption == "As published."
    assert {row["run"] for row in rows_of(beside[0], "value")} == {"elsewhere"}
    alone = dataclasses.replace(study, trajectories=[told])
    assert published_state_charts(alone) == []
    assert len(representation_charts(alone)) == 8
