"""Charts and sentence of the phases of representations."""

import dataclasses

import polars as pl
import pytest
from experiment_material import material, phases, with_states
from section_tools import section_of

from toposcope.report.study_data import StudyData
from toposcope_experiments.representation_phases.sections import describe_phases, representation_phase_charts


@pytest.fixture(scope="module")
def study() -> StudyData:
    return with_states(material(3))


def test_each_run_has_a_chart_that_names_its_phases(study: StudyData) -> None:
    first, _, last = representation_phase_charts(study)
    assert first.title == "RankMe of hidden states goes through warm-up, entropy-seeking, compression-seeking in run-0"
    assert last.title == "RankMe of hidden states goes through warm-up, entropy-seeking in run-2"
    rows = [row for rows in first.spec()["datasets"].values() for row in rows]
    turning = {(row["series"], row["step"]) for row in rows if row.get("turns")}
    assert turning == {("RankMe", 10), ("RankMe", 1000)}
    assert {row["low"] for row in rows if "low" in row} == {3, 300}
    assert {row["series"] for row in rows if "series" in row} == {
        "RankMe", "H0 total / radius", "H1 total", "H1 entropy",
    }  # fmt: skip
    shares = [row["share"] for row in rows if row.get("series") == "RankMe"]
    assert (min(shares), max(shares)) == (0, 1)
    assert first.spec()["layer"][-1]["encoding"]["x"]["scale"]["type"] == "symlog"
    assert first.render("svg").startswith(b"<svg")


def test_the_section_says_in_how_many_runs(study: StudyData) -> None:
    text = str(section_of("representation-phases", study))
    assert "are found in 2 of 3 runs" in text
    assert "Of 6 statistics" in text


def test_without_hidden_states_there_is_no_chart() -> None:
    assert representation_phase_charts(material(2)) == []


@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 10), (8, 10)])
def test_small_and_large_studies_are_drawn(runs: int, checkpoints: int) -> None:
    charts = representation_phase_charts(with_states(material(runs, checkpoints)))
    assert len(charts) == min(runs, 3)
    assert ("3 of 8 runs are shown" in charts[0].caption) == (runs == 8)


def test_a_rank_without_a_turn(study: StudyData) -> None:
    none = {f"turn_{i}{end}": pl.lit(None, pl.Int64) for i in (1, 2, 3) for end in ("", "_low", "_high")}
    table = study.tables["representation_phases"].with_columns(phases=pl.lit(""), **none)
    flat = dataclasses.replace(study, tables={**study.tables, "representation_phases": table})
    chart = representation_phase_charts(flat)[0]
    assert chart.title == "RankMe of hidden states does not turn in run-0"
    assert chart.render("svg").startswith(b"<svg")


def test_phases_without_a_turn_are_not_asked_about() -> None:
    found = with_states(material(2)).trajectories
    table = phases(found)
    spectral = table.filter(kind="spectral").with_columns(phases=pl.lit(""), n_turns=pl.lit(0, pl.Int64))
    told = describe_phases(spectral, table.filter(kind="diagram").with_columns(follows=pl.lit(None, pl.String)))
    assert "found in none of 2 runs (run-0, run-1: no turn); whether the diagrams turn" in told
    further = table.filter(kind="spectral").with_columns(
        phases=pl.lit("warm-up, entropy-seeking, compression-seeking, entropy-seeking")
    )
    told = describe_phases(further, table.filter(kind="diagram"))
    assert (
        "in order and with nothing after, are found in none of 2 runs; with a fourth stretch after, in all 2 runs"
        in told
    )
    assert "(run-0, run-1: warm-up" in told
    assert "statistics of the diagrams of hidden states next to" in told
