"""What the report says of nested models: the sentences, tables and charts of a population, and nothing of few runs."""

import dataclasses
from functools import cache, partial
from typing import Any

import polars as pl
import pytest
from made_studies import study as small_study
from nested_populations import Carried, frames
from section_tools import all_tables

from toposcope.analysis.nested_models.fitting import ALL_TOPOLOGY
from toposcope.report.composing import Page
from toposcope.report.first_screen import first_screen
from toposcope.report.section import Tables
from toposcope.report.sections.nested_models import SECTION
from toposcope.report.study_data import StudyData


@cache
def of_population(topology: Carried, n_runs: int, **options: Any) -> StudyData:
    """Return a study of a population whose nested models are computed when they are read."""
    found, log, runs = frames(topology, n_runs, **options)
    of = dataclasses.replace(small_study("nothing"), trajectories=found, log=log, runs=runs)
    given = {name: partial(itself, frame) for name, frame in all_tables(**of.tables).items()}
    object.__setattr__(of, "tables", Tables(of, given | dict(SECTION.tables)))
    return of


def itself(frame: pl.DataFrame, _: StudyData) -> pl.DataFrame:
    return frame


def informed() -> StudyData:
    return of_population("the hidden", 40, projections="nothing", twin="nothing")


@pytest.mark.slow
def test_a_gain_is_said_first_and_drawn() -> None:
    page = Page([SECTION], informed())
    composed = page.compose()
    assert composed.summary[0].startswith(
        "Topology says more about the final validation loss than the loss so far, the sche"
    )
    assert composed.sections[0].finding == (
        "Topology says more about the final validation loss than the loss so far, schedule and norms"
    )
    assert [chart.name for chart in (picture.chart for picture in pictures(composed.sections[0].blocks))] == [
        "nested-models-skill",
        "nested-models-errors",
    ]
    assert {"nested_models", "nested_draws", "nested_verdicts"} == set(composed.tables)
    assert (composed.tables["nested_models"].filter(model=ALL_TOPOLOGY)["n_runs"] == 40).all()


def pictures(blocks: Any) -> list[Any]:
    return [block for block in blocks if block.kind == "picture"]


@pytest.mark.slow
def test_the_first_screen_begins_with_it() -> None:
    screen = first_screen(informed())
    assert screen.first == "Topology says more about the final loss than the loss so far, schedule and norms."
    assert screen.second.startswith("Over 40 runs and 6 fractions the error is up to ")
    nothing = first_screen(of_population("nothing", 24))
    assert (
        nothing.first
        == "Nothing found: topology says no more about the final loss than the loss so far, schedule and norms."
    )


@pytest.mark.parametrize("n_runs", [3, 12, 19])
def test_few_runs_have_no_section(n_runs: int) -> None:
    of = of_population("the hidden", n_runs)
    composed = Page([SECTION], of).compose()
    assert not composed.sections
    assert not composed.summary
    assert SECTION.needs["nested_models"][0](of) == f"20 runs to compare; {n_runs} runs can be"
    assert "the loss so far" not in first_screen(of).first
