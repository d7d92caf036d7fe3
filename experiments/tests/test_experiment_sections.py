"""The sections of the experiments on a study's page: their findings, tables and sentences at the top."""

import re
from functools import cache

import polars as pl
import pytest
from experiment_material import material, with_states
from section_tools import CORE, section_of, with_tables

from toposcope.report.composing import Page
from toposcope.report.document import Details, Section
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table

SECTIONS = {section.anchor: section for section in report_sections() if section not in CORE}
MAX_CHARACTERS = 95


def finding(anchor: str, of: StudyData) -> str:
    return SECTIONS[anchor].finding(of)


def tables(section: Section | None) -> list[Table]:
    assert section is not None
    found = []
    for block in section.blocks:
        found += [b for b in (block.blocks if isinstance(block, Details) else (block,)) if isinstance(b, Table)]
    return found


@cache
def with_and_without_states(n_runs: int) -> list[StudyData]:
    full = material(n_runs, 4)
    return [full, with_states(full)]


def test_the_sections_are_found_by_their_entry_points() -> None:
    assert list(SECTIONS) == [
        *("similarity", "degeneracy", "outlier-runs", "representation-phases"),
        *("predictions", "published"),
    ]


@pytest.mark.parametrize("anchor", sorted(SECTIONS))
@pytest.mark.parametrize("n_runs", [1, 200])
def test_a_finding_is_one_short_sentence(anchor: str, n_runs: int) -> None:
    for of in with_and_without_states(n_runs):
        text = finding(anchor, of)
        assert len(text) <= MAX_CHARACTERS, text
        assert not re.search(r"\bnan\b|None\b(?! of| can)|\.$|  ", text), text
        assert not text or text[0] in "0123456789" or text[0].isupper()


def test_ranks_of_hidden_states_turn() -> None:
    states = with_states(material(3, 10))
    assert finding("representation-phases", states) == "A rank of the hidden states turns in all 3 runs"


def test_turns_are_told_with_their_intervals() -> None:
    study = with_states(material(3))
    (table,) = tables(section_of("representation-phases", study))
    first = dict(zip([c.title for c in table.columns], table.rows[0], strict=True))
    assert first["feature"] == "RankMe of hidden states (control)"
    assert first["first"] == "10 (3 to 30)"
    assert "third" not in first  # no run turns a third time
    assert len(table.rows) == 9
    nothing = with_tables(study, {"representation_phases": study.tables["representation_phases"].clear()})
    assert section_of("representation-phases", nothing) is None


def test_topology_in_the_published_forecast() -> None:
    assert finding("predictions", material(3)) == ("3 runs are too few to test what topology adds to the forecast")
    without = material(3).tables["predictions"].filter(pl.col("forecaster") == "last")
    alone = with_tables(material(3), {"predictions": without})
    assert finding("predictions", alone) == "No forecast from topology can be made"


def test_the_verdicts_on_claims_stand_at_the_top_of_the_page() -> None:
    claims = pl.DataFrame(
        {"number": [1, 2, 3], "claim": ["x"] * 3, "verdict": ["stands", "does not", "stands"], "why": [""] * 3}
    )
    told = Page([SECTIONS["published"]], with_tables(material(3), {"claims": claims})).summary()
    judged = "The published study makes 3 claims; the verdict here is “stands” for numbers 1 and 3 and “does not” for "
    assert f"{judged}number 2." in told
