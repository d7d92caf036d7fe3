"""The sentence next to a section's title: short, true, and empty where there is nothing to say."""

import dataclasses
import re
from functools import cache

import numpy as np
import polars as pl
import pytest
from made_studies import study as study_by_rule
from made_up_material import material
from made_up_states import with_states
from section_tools import CORE, with_tables

from toposcope.analysis.table import association_table
from toposcope.report.composing import Page
from toposcope.report.document import paragraph
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table

SECTIONS = {section.anchor: section for section in CORE}
MAX_CHARACTERS = 95


def finding(anchor: str, of: StudyData) -> str:
    return SECTIONS[anchor].finding(of)


def associated(rule: str) -> StudyData:
    of = study_by_rule(rule)
    return with_tables(of, {"association": association_table(of.trajectories)})


def test_the_finding_stands_in_the_document() -> None:
    part = ReportSection[StudyData](
        anchor="a", title="A", blocks=lambda *_: (paragraph("b"),), finding=lambda of: f"{len(of.trajectories)} runs"
    )
    (composed,) = Page([part], material(2, 3)).compose().sections
    assert composed.finding == "2 runs"


@cache
def with_and_without_states(n_runs: int) -> list[StudyData]:
    full = material(n_runs, 4)
    testable = full.tables["association"].with_columns(untested=pl.lit(""))
    return [with_tables(of, {"association": testable}) for of in (full, with_states(full))]


@pytest.mark.parametrize("anchor", sorted(SECTIONS))
@pytest.mark.parametrize("n_runs", [1, 200])
def test_a_finding_is_one_short_sentence(anchor: str, n_runs: int) -> None:
    for of in with_and_without_states(n_runs):
        text = finding(anchor, of)
        assert len(text) <= MAX_CHARACTERS, text
        assert not re.search(r"\bnan\b|None\b(?! of| can)|\.$|  ", text), text
        assert not text or text[0] in "0123456789" or text[0].isupper()


@pytest.mark.parametrize("anchor", sorted(SECTIONS))
def test_a_study_without_data_has_no_finding_or_says_so(anchor: str) -> None:
    full = material(1, 3)
    bare = [dataclasses.replace(t, features={}, targets={}, groups={}, layers={}, roles={}) for t in full.trajectories]
    empty = {name: frame.clear() for name, frame in full.tables.items()}
    empty["association"] = empty["association"].with_columns(untested=pl.lit("", pl.String))
    findings = full.findings.clear()
    text = finding(anchor, dataclasses.replace(full, trajectories=bare, tables=empty, findings=findings))
    assert not text


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("information", "Topology says more about the loss than the training step"),
        ("clock", "Topology goes with the loss, but says no more about it than the training step"),
    ],
)
def test_the_association_says_what_is_beyond_the_trend(rule: str, text: str) -> None:
    assert finding("association", associated(rule)) == text


def test_between_runs_says_what_topology_adds() -> None:
    text = finding("between-runs", material(9, 4))
    assert text == "Topology goes with the final validation loss, but says no more about it than loss and norms"


def test_the_doctor_counts_runs_with_faults_and_failures() -> None:
    full = dataclasses.replace(material(3, 4), examined=["run-0", "run-1", "run-2"])
    assert finding("doctor", full) == "Faults in the checkpoints of 1 of 3 runs"
    clean = dataclasses.replace(full, findings=full.findings.clear())
    assert finding("doctor", clean) == "No fault in the checkpoints of 3 runs"
    failed = dataclasses.replace(clean, errors=pl.DataFrame({"message": ["x", "y"]}))
    assert finding("doctor", failed).endswith("; 2 parts of the work failed")


def test_ranks_of_hidden_states() -> None:
    states = with_states(material(3, 10))
    assert finding("representations", states) == "RankMe of hidden states falls in all 3 runs"
    one = states.trajectories[0]
    rising = dataclasses.replace(one, features={f: np.arange(len(one.steps), dtype=float) for f in one.features})
    both = dataclasses.replace(states, trajectories=[rising, *states.trajectories[1:]])
    assert finding("representations", both).endswith("rises in 1 and falls in 2 of 3 runs")


def test_of_many_runs_a_few_are_named() -> None:
    full = material(40, 4)
    names = [f"run-{i}" for i in range(40)]
    clean = dataclasses.replace(full, examined=names, findings=full.findings.clear())
    assert "run-0, run-1, run-2 and 37 more" in str(list(SECTIONS["doctor"].blocks(clean, [])))
    unfinished = dataclasses.replace(full, runs=full.runs.with_columns(status=pl.lit("failed")))
    assert "Not complete: run-0, run-1, run-2 and 37 more." in SECTIONS["moves"].summary(unfinished)


def test_a_table_that_nobody_would_scroll_through_is_only_beside_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables() -> list[str]:
        blocks = [block for block in SECTIONS["association"].blocks(associated("clock"), ()) if block is not None]
        nested = [inner for block in blocks for inner in getattr(block, "blocks", [block])]
        return [block.name for block in nested if isinstance(block, Table)]

    assert "association" in tables()
    monkeypatch.setattr("toposcope.report.sections.association.MAX_TABLE_ROWS", 2)
    assert "association" not in tables()
