"""The page of the experiment on regularisation says what its tables say, and the command makes it."""

from pathlib import Path

import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from commands import complaint_of
from experiment_commands import run_three_times
from made_up_digits import made_up

from toposcope.report.composing import Page
from toposcope_experiments.regularisation.charts import PANELS
from toposcope_experiments.regularisation.comparison import AGAINST, AT_STEP, compare
from toposcope_experiments.regularisation.design import BATCH_NORM, CONDITIONS, PLAIN, Design
from toposcope_experiments.regularisation.experiment import run_experiment
from toposcope_experiments.regularisation.features import FEATURES, NORM, NP, PLACEBO
from toposcope_experiments.regularisation.page import RegularisationData
from toposcope_experiments.regularisation.page_sections import regularisation_page

ORDERED = {NP: {"dropout": 0.5, "batch norm": 0.2, "all labels random": -0.5}}
EXPLAINED = {name: {"dropout": 0.5} for name in (NP, PLACEBO, NORM)}


@pytest.fixture(scope="module")
def ordered() -> Page[RegularisationData]:
    return regularisation_page(made_up(ORDERED))


@pytest.mark.slow
def test_the_sentences_are_the_verdicts(ordered: Page[RegularisationData]) -> None:
    summary = ordered.summary()
    assert summary[0] == (
        "Of 6 comparisons with a published direction neural persistence is as published in 6 (6 of them without a "
        "control that differs too), and the other way round in none."
    )
    published = "Published: neural persistence is higher with"
    start = f"{published} dropout than in plain networks. Found: at equal step so it is, and no control differs ("
    assert summary[1].startswith(start)
    assert "at equal training loss so it is" in summary[1]
    assert summary[2].startswith(f"{published} batch norm than in plain networks.")
    assert summary[3].startswith(f"{published} dropout than with batch norm.")
    lower = "it is lower with all labels random"
    found = f"at equal step {lower}; at equal training loss {lower}"
    assert summary[4] == f"On the other pairs no direction is published. Found: {found}."
    assert summary[5] == (
        "Over all pairs, both views and three measures of neural persistence 8 of 66 differences are shown; in 8 of "
        "them neither norms nor spectrum nor the placebo differ."
    )
    assert summary[6].startswith("Rank correlation with the test accuracy: neural persistence:")
    assert "Stopping when neural persistence rises no more saves" in summary[7]


@pytest.mark.slow
def test_the_sentences_can_say_the_opposite() -> None:
    summary = regularisation_page(made_up(EXPLAINED)).summary()
    assert "as published in 4 (none of them without a control that differs too)" in summary[0]
    controls = "NP of the placebo and weight norm"
    assert f"at equal step so it is, and {controls} differ as well (" in summary[1]
    assert "at equal step no difference is shown" in summary[2]
    against = regularisation_page(made_up({NP: {"dropout": -0.5}})).summary()
    assert "as published in none, and the other way round in 4." in against[0]
    assert "at equal step it is the other way round" in against[1]
    few = regularisation_page(made_up(ORDERED, n_runs=2)).summary()
    assert "at equal step it cannot be told, since no p of so few runs" in few[1]


@pytest.mark.slow
def test_every_chart_can_be_drawn_and_holds_the_numbers(ordered: Page[RegularisationData]) -> None:
    charts = {chart.name: chart for _, chart in ordered.charts()}
    assert sorted(charts) == [
        "regularisation-conditions", "regularisation-courses",
        "regularisation-grid",
    ]  # fmt: skip
    for chart in charts.values():
        check_chart(chart)
    title = "At equal step neural persistence differs in 4 of 11 pairs, in 4 of them alone"
    assert charts["regularisation-conditions"].title == title
    runs = ordered.tables()["runs"]
    dots = rows_of_chart(charts["regularisation-conditions"], "condition", "run", "value")
    assert len(dots) == len(PANELS) * len(runs)
    assert {row["value"] for row in dots} >= set(runs[NP])
    grid = rows_of_chart(charts["regularisation-grid"], "patience", "burn_in", "lost")
    settings = ordered.tables()["grid"].filter(pl.col("patience").is_not_null())
    assert {row["lost"] for row in grid} == set(settings["lost"])  # rules that never stop share their rows


@pytest.mark.slow
def test_the_command_trains_measures_and_writes_the_same_each_time(tmp_path: Path) -> None:
    found, _ = run_three_times(tmp_path, "regularisation", "--seeds", "2", "--epochs", "4")
    assert len(found["runs"]) == 2 * len(CONDITIONS)
    assert {row["verdict"] for row in found["verdicts"]} == {"cannot be told"}
    features = pl.read_csv(tmp_path / "one" / "tables" / "features.csv", infer_schema_length=None)
    assert len(features) == 2 * len(CONDITIONS) * 10
    assert features.select(pl.col(*FEATURES).is_finite().all()).row(0) == (True,) * len(FEATURES)


@pytest.mark.slow
def test_batch_normalisation_lowers_neural_persistence_and_norms_too(tmp_path: Path) -> None:
    """Eight runs of two conditions, for a third of the epochs."""
    measured = run_experiment(Design(seeds=8, epochs=20), tmp_path, conditions=[PLAIN, BATCH_NORM], workers=1)
    row = compare(measured).verdicts.filter(feature=NP, view=AT_STEP).row(0, named=True)
    assert row["verdict"] == AGAINST
    assert row["high"] < 0
    assert PLACEBO in row["controls"]


def test_a_design_out_of_range_is_bad_use() -> None:
    assert "at least 2" in complaint_of("regularisation", "--seeds", "1")
