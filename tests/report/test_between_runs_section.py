"""What the report says of runs at equal step: first where it can be asked, else what would make it possible."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from made_studies import study as small_study
from made_up_populations import Array, population, uninformative, wandering
from section_tools import section_of, summary, with_tables

from toposcope.analysis import between_runs_step_table, between_runs_table
from toposcope.report.not_made import not_made_table, sentences
from toposcope.report.sections.between_runs import SECTION, between_runs_charts
from toposcope.report.study_data import StudyData


def informative(rng: np.random.Generator, loss: Array, rate: Array, hidden: Array) -> dict[str, Array]:
    made = uninformative(rng, loss, rate, hidden)
    return {"rips H0.total": hidden[:, None] + 0.2 * wandering(rng, loss.shape), **made}


def of_population(n_runs: int, *, informed: bool, sizes: tuple[int, ...] = (3000,)) -> StudyData:
    """Return a study of a population, with its two tables."""
    found, log, runs = population(informative if informed else uninformative, n_runs, 8, 1, sizes=sizes)
    of = dataclasses.replace(small_study("nothing"), trajectories=found, log=log, runs=runs)
    tests, steps = between_runs_table(found, log, runs), between_runs_step_table(found, log, runs)
    return with_tables(of, {"between_runs": tests, "between_runs_by_step": steps})


@pytest.fixture(scope="module")
def informed() -> StudyData:
    return of_population(20, informed=True)


def test_information_between_runs_is_said_first(informed: StudyData) -> None:
    first = summary(informed)[0]
    assert first.startswith(
        "Topology says more about the final validation loss than the loss, the learning rate and the weight norm at "
        "the same step: between 20 runs of one size at equal step, 1 of 8 topological features does so (H0 total)."
    )
    assert "With 20 runs a rank correlation of 0." in first
    assert first.endswith("Of 1 plain quantity (norms, spectra), none carries any given the same.")
    assert "decides; a control is tested given the others; p is by permuting the runs" in str(
        section_of("between-runs", informed)
    )
    assert "Between runs, at level 0.05" in str(section_of("methods", informed))


def test_no_information_is_said_with_what_would_have_been_detected() -> None:
    first = summary(of_population(12, informed=False))[0]
    assert first.startswith(
        "Topology goes with the final validation loss, but says no more about it than the loss, the"
    )
    assert "With 12 runs a rank correlation of 0." in first


def test_sizes_are_named() -> None:
    first = summary(of_population(16, informed=False, sizes=(3000, 7000)))[0]
    assert ": between 16 runs of 2 sizes, each among those of its size, at equal step, alone " in first


def test_where_no_test_could_be_made_none_is_claimed(informed: StudyData) -> None:
    undefined = {"verdict": pl.lit("cannot be told"), "reason": pl.lit("the same in all runs")}
    of = with_tables(informed, {"between_runs": informed.tables["between_runs"].with_columns(**undefined)})
    first = summary(of)[0]
    assert first.startswith("Whether topology says more about")
    assert first.endswith("cannot be told: the same in all runs.")


def test_few_runs_are_one_line_of_the_methods() -> None:
    few = of_population(5, informed=False)
    assert section_of("between-runs", few) is None
    assert between_runs_charts(few) == []
    assert not any("Between" in sentence for sentence in summary(few))
    (said,) = [one for one in sentences(not_made_table(few, [SECTION])) if "between_runs_by_step" in one]
    assert "needs more runs: 5 runs can be compared at equal step; it takes 8 runs of one size" in said


def test_runs_that_are_left_out_are_named(informed: StudyData) -> None:
    status = pl.when(run="run-3").then(pl.lit("diverged")).otherwise("status")
    changed = dataclasses.replace(informed, runs=informed.runs.with_columns(status=status))
    assert "Excluded: run-3 (diverged)." in str(section_of("between-runs", changed))


def test_the_figure_names_its_features(informed: StudyData) -> None:
    alone, given = between_runs_charts(informed)
    assert alone.title == "Alone, 1 of 2 features goes with the final loss"
    assert given.title == "Given the loss and the controls, 1 of 2 features goes with the final loss"
    assert "across 20 runs" in given.alt
    assert "H0 total" in str(given.spec()["datasets"])
