"""What the report says of topology between runs: first where it can be asked, else what would make it possible."""

import dataclasses
from functools import cache, partial
from typing import Any

import polars as pl
import pytest
from made_studies import study as small_study
from made_up_material import between_runs, material
from run_populations import Carried, frames
from section_tools import all_tables, section_of, with_tables

from toposcope.analysis.between_runs.verdict import KNOWN
from toposcope.analysis.verdict import BEYOND, NONE
from toposcope.report.composing import Page
from toposcope.report.document import Picture
from toposcope.report.first_screen import first_screen
from toposcope.report.not_made import not_made_table, sentences
from toposcope.report.section import Tables
from toposcope.report.sections.between_runs import SECTION, between_runs_charts
from toposcope.report.study_data import StudyData

BEGINNING = "Topology says more about the final validation loss than the loss so far, "


@cache
def of_population(topology: Carried, n_runs: int, **options: Any) -> StudyData:
    """Return a study of a population whose table is computed when it is read."""
    found, log, runs = frames(topology, n_runs, **options)
    of = dataclasses.replace(small_study("nothing"), trajectories=found, log=log, runs=runs)
    given = {name: partial(itself, frame) for name, frame in all_tables(**of.tables).items()}
    object.__setattr__(of, "tables", Tables(of, given | dict(SECTION.tables)))
    return of


def itself(frame: pl.DataFrame, _: StudyData) -> pl.DataFrame:
    return frame


@pytest.mark.slow
def test_a_gain_is_said_first_and_drawn() -> None:
    of = of_population("the hidden", 40, projections="nothing", twin="nothing")
    composed = Page([SECTION], of).compose()
    assert composed.summary[0].startswith(f"{BEGINNING}the schedule and plain quantities of the weights: at ")
    assert composed.sections[0].finding == f"{BEGINNING}schedule and norms"
    charts = [block.chart.name for block in composed.sections[0].blocks if isinstance(block, Picture)]
    assert charts == ["between-runs-skill", "between-runs-errors"]
    assert set(composed.tables) == {"between_runs"}
    screen = first_screen(of)
    assert screen.first == "Topology says more about the final loss than the loss so far, schedule and norms."
    assert screen.second.startswith("Over 40 runs and 6 fractions ")
    assert "% smaller, at " in screen.second
    status = pl.when(run="run-3").then(pl.lit("diverged")).otherwise("status")
    changed = with_tables(dataclasses.replace(of, runs=of.runs.with_columns(status=status)), of.tables)
    object.__setattr__(changed, "_computed", {})
    assert "Excluded: run-3 (diverged)." in str(section_of("between-runs", changed))


def of_verdict(verdict: str) -> StudyData:
    of = material(9, 4)
    return with_tables(of, {"between_runs": between_runs(of.trajectories, verdict)})


@pytest.mark.parametrize(
    ("of", "summary", "second"),
    [
        (material(9, 4), f"no more about it than {KNOWN}: added to the loss so far alone, at 10% of training rips H0 "
         "makes the error 50% smaller (40% to 60%, adjusted p 0.01), over 9 runs. Given all of these, a gain of 20%",
         "rips H0 added to the loss so far alone makes the error 50% smaller, at 10% of training."),
        (of_verdict(NONE), "over 9 runs and 3 fractions its skill is 0.0% to 0.0%, the lowest adjusted p 0.5. Given "
         "all of these, a gain of 20% would have been detected 4 times in 5.",
         "Over 9 runs and 3 fractions a gain of 20% would have been detected at best, and none was."),
        (of_verdict(BEYOND), f"than {KNOWN}: at 10% of training rips H0 makes", "rips H0 makes the error 40% smaller"),
    ],
)  # fmt: skip
def test_sentences_follow_the_table(of: StudyData, summary: str, second: str) -> None:
    assert summary in Page([SECTION], of).summary()[0]
    assert second in first_screen(of).second
    assert "Between runs, at level 0.05" in str(section_of("methods", of))


def test_charts_show_topology_given_the_loss_alone_and_given_everything() -> None:
    skills, errors = between_runs_charts(material(9, 4))
    assert skills.title.startswith("Topology goes with the final validation loss")
    assert (
        "rips H0, given the loss alone, rips H0, given everything else, random projections, placebo twin" in skills.alt
    )
    assert errors.title == "With norms and spectra the error of the final validation loss falls from 0.045 to 0.005"


@pytest.mark.parametrize("n_runs", [3, 11])
def test_few_runs_are_one_line_of_the_methods(n_runs: int) -> None:
    of = of_population("the hidden", n_runs)
    composed = Page([SECTION], of).compose()
    assert not composed.sections
    assert not composed.summary
    (said,) = sentences(not_made_table(of, [SECTION]))
    assert said == f"not made: between_runs: needs 12 runs to compare; {n_runs} runs can be"
    assert "the loss so far" not in first_screen(of).first
