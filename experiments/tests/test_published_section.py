"""The section on a publication, its place in the Markdown, and where a report of two is not written."""

import dataclasses
from pathlib import Path

import msgspec
import polars as pl
import pytest
from commands import complaint_of
from experiment_material import material
from section_tools import section_of, with_tables

from toposcope.report.document import Code, Document, Section, csv_link, paragraph
from toposcope.report.markdown import to_markdown
from toposcope.report.study_data import StudyData
from toposcope_experiments.published_study.claims import SCHEMA
from toposcope_experiments.published_study.published import Published

CLAIMS = pl.DataFrame([(8, "x", "stands", "y")], schema=SCHEMA, orient="row")


def telling(declared: Published) -> StudyData:
    full = material(2)
    return dataclasses.replace(
        full, declaration=msgspec.structs.replace(full.declaration, published=msgspec.to_builtins(declared))
    )


def test_without_claims_there_is_no_section_of_claims() -> None:
    nothing = telling(Published(source="somebody"))
    assert section_of("published", nothing) is None
    found = section_of("published", nothing, [paragraph("A figure.")])
    assert found is not None
    assert (found.title, len(found.blocks)) == ("What was published", 2)
    with_claims = section_of("published", with_tables(nothing, {"claims": CLAIMS}))
    assert with_claims is not None
    assert with_claims.title == "The published study, claim by claim"


@pytest.mark.parametrize(("runs", "noted"), [(["run-0", "elsewhere"], True), (["run-0", "run-1"], False)])
def test_runs_that_are_not_here_are_named(runs: list[str], noted: bool) -> None:
    found = section_of(
        "published", with_tables(telling(Published(final_loss=dict.fromkeys(runs, 2.0))), {"claims": CLAIMS})
    )
    assert found is not None
    note = "Published of runs that are not in this study: elsewhere."
    assert (note in to_markdown(Document("x", ["x."], [found]))) == noted


def test_words_of_markdown_stand_apart_from_links_and_code() -> None:
    parts = paragraph("All: ", csv_link("runs"), ", kept as ", Code("a.toml"), " here. ")
    text = to_markdown(Document("x", ["Said."], [Section("s", "S", (parts,))]))
    assert "All: [runs.csv](tables/runs.csv), kept as `a.toml` here.\n" in text


def test_a_report_of_two_is_not_written_into_a_study(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        (folder / "study.toml").write_text("")
    said = complaint_of("report", first, second, "--out", first)
    assert f"--out {first}: the folder holds a study; choose another" in said
    assert sorted(path.name for path in first.iterdir()) == ["study.toml"]
