"""What the report says of runs that stand apart: who, in what first, since when, and what cannot be told."""

import dataclasses

import msgspec
import pytest
from made_studies import study as small_study
from made_up_replicates import LOSS, family, runs_frame, trajectories
from section_tools import section_of, with_tables

from toposcope.analysis.trajectory import Trajectory
from toposcope.family import FamilyRun
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData
from toposcope.study import Declaration
from toposcope.study.declared_runs import Population
from toposcope_experiments.outlier_runs.chart import drawn_quantities, outlier_run_charts
from toposcope_experiments.outlier_runs.outlier_runs import outlier_run_table, outlier_standing_table, replicate_runs
from toposcope_experiments.outlier_runs.section import declared_settings

NORM = "controls frobenius_norm"
(SECTION,) = (section for section in report_sections() if section.anchor == "outlier-runs")


def material_of(families: list[list[Trajectory]]) -> StudyData:
    found = [t for one in families for t in one]
    runs = runs_frame(found, [1000 * (i + 1) for i, one in enumerate(families) for _ in one])
    replicates = replicate_runs(found, runs)
    of = dataclasses.replace(small_study("nothing"), trajectories=found, runs=runs)
    tables = {"outlier_runs": outlier_run_table(replicates), "outlier_standings": outlier_standing_table(replicates)}
    return with_tables(of, tables)


def disturbed(prefix: str) -> list[Trajectory]:
    steps, values = family(9, 12, 0)
    values[NORM][2, 5:] *= 1.6
    values[LOSS][2, 7:] *= 1.15
    values[NORM][3, 8:] *= 2
    return trajectories(steps, values, prefix)


def quiet(prefix: str, n_runs: int = 9) -> list[Trajectory]:
    return trajectories(*family(n_runs, 12, 1), prefix)


@pytest.fixture(scope="module")
def both() -> StudyData:
    return material_of([quiet("small-"), disturbed("large-")])


def test_the_first_sentences_name_the_runs_and_when(both: StudyData) -> None:
    first, second, third = (s for s in SECTION.summary(both) if s.startswith("Among"))
    assert first.startswith(
        "Among 9 runs of 2,000 parameters at equal step, large-3 stands apart: first in weight norm (control), from "
        "step 500 on ("
    )
    assert first.endswith("before the loss (from step 700 on): weight norm (control).")
    assert second.startswith(
        "Among the same runs large-4 stands apart: first in weight norm (control), from step 800 on"
    )
    assert "its loss stays with the others at the first of these steps and is never apart" in second
    assert third.startswith("Among 9 runs of 1,000 parameters at equal step, no run stands apart: it would take")
    assert SECTION.finding(both) == "2 of 18 runs stand apart from their replicates"


def test_the_section_says_what_ranks_cannot_do(both: StudyData) -> None:
    text = str(section_of("outlier-runs", both))
    assert "with 9 runs some run is always the most extreme" in text
    assert "Outlier runs, at level 0.05" in str(section_of("methods", both))


def test_nobody_is_named_where_nothing_is(both: StudyData) -> None:
    nothing = material_of([quiet("small-")])
    (only,) = (s for s in SECTION.summary(nothing) if s.startswith("Among"))
    assert "no run stands apart" in only
    assert SECTION.finding(nothing) == "None of 9 runs stands apart from its replicates"
    (chart,) = outlier_run_charts(nothing)
    assert chart.title == "1,000 parameters: no run stands apart"


def test_runs_with_gaps_are_named() -> None:
    steps, values = family(9, 12, 1)
    for name in values:
        values[name][7, 1::2] = float("nan")
    gaps = material_of([trajectories(steps, values)])
    assert "Not compared at every step: seed8 (6 of 12 steps)." in str(section_of("outlier-runs", gaps))


def test_few_runs_are_one_line_of_the_methods() -> None:
    few = material_of([quiet("few-", 4)])
    assert section_of("outlier-runs", few) is None
    assert outlier_run_charts(few) == []
    assert SECTION.finding(few) == ""
    assert "Outlier runs: not looked for; it takes 5 runs of one size" in str(section_of("methods", few))


def test_charts_begin_with_the_family_that_has_outliers(both: StudyData) -> None:
    charts = outlier_run_charts(both)
    assert [chart.title for chart in charts] == [
        "2,000 parameters: large-3, large-4 stand apart", "1,000 parameters: no run stands apart",
    ]  # fmt: skip
    assert drawn_quantities(both.tables["outlier_runs"].filter(family="2,000 parameters"))[:2] == [LOSS, NORM]
    for chart in charts:
        assert chart.render("svg").startswith(b"<svg")


def test_only_the_seed_may_differ_between_replicates() -> None:
    vary = {"size": ["tiny-3k"], "learning_rate": [1e-3, 2e-3], "seed": [1, 2, 3]}
    declared = Declaration(name="x", population=msgspec.convert({"vary": vary, "design": "grid"}, Population))
    settings = declared_settings(declared)
    runs: list[FamilyRun] = declared.resolved_runs()
    groups = {settings[run.name]: run.training.learning_rate for run in runs}
    assert sorted(groups.values()) == [1e-3, 2e-3]
