"""Tables and sentences of a study of hidden states."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest
from made_studies import N, trajectory
from made_studies import study as study_by_rule
from made_up_material import material
from made_up_states import LABEL, SPECTRA, with_states
from named_features import by_feature
from section_tools import section_of, summary, with_tables

from toposcope.analysis.table import association_table
from toposcope.analysis.table import comparison_table as compared
from toposcope.analysis.topology_verdict import has_scales
from toposcope.report.association_tables import full_table, legend, short_table
from toposcope.report.document import Details, Paragraph, Section
from toposcope.report.sections.association import against_spectra
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table
from toposcope.report.text_losses import NOT_COMPARABLE
from toposcope.study.kinds import feature_named


@pytest.fixture(scope="module")
def study() -> StudyData:
    return with_states(material(3))


def tables(section: Section | None) -> list[Table]:
    assert section is not None
    found = []
    for block in section.blocks:
        found += [b for b in (block.blocks if isinstance(block, Details) else (block,)) if isinstance(b, Table)]
    return found


def of_states(rule: str) -> StudyData:
    """A study whose H1 entropy of hidden states is made by rule, beside spectra that are noise."""
    found = []
    for i, run in enumerate(("small", "middle", "large", "huge")):
        t = trajectory(run, i, rule, "text_loss")
        draw = np.random.default_rng(100 + i)
        features = {f"{LABEL} H1.entropy": t.features[feature_named("rips H0.total")]}
        features |= {f"{LABEL} {name}": draw.standard_normal(N) for name in SPECTRA}
        found.append(dataclasses.replace(t, features=by_feature(features), clouds={LABEL: LABEL}))
    of = dataclasses.replace(study_by_rule(rule), trajectories=found)
    return with_tables(of, {"association": association_table(found), "comparisons": compared(found)})


def said(of: StudyData) -> str:
    return " ".join(summary(of))


def test_the_verdict_reads_well_of_hidden_states() -> None:
    beyond = said(of_states("information"))
    assert re.search(r"of \d+ topological features? do(es)? so in at least one of 4 runs: .*of hidden states", beyond)
    assert "comparisons of a topological feature with a spectral measure of the same hidden states" in beyond
    assert "5 plain quantities (norms, spectra)" in beyond
    assert re.search(r"H1 entropy of hidden states.* the step", said(of_states("clock")))


def test_association_tables_have_the_scale_where_there_is_one() -> None:
    with_scale, without = (
        found.tables["association"].filter(group="network") for found in (of_states("clock"), study_by_rule("clock"))
    )
    assert has_scales(with_scale)
    assert not has_scales(without)
    for make in (short_table, lambda rows: full_table("x", "x", rows)):
        wide, narrow = make(with_scale), make(without)
        assert wide is not None
        assert narrow is not None
        assert len(wide.columns) > len(narrow.columns)
    assert len(legend(with_scale).items) == len(legend(without).items) + 1
    short = short_table(with_scale)
    assert short is not None
    assert {row[0] for row in short.rows} == {
        "H1 entropy of hidden states",
        *(f"{name} of hidden states (control)" for name in
          ("RankMe", "Effective rank", "Top eigenvalue", "Anisotropy", "Intrinsic dimension")),
    }  # fmt: skip


def test_tests_of_topology_against_spectra_stand_side_by_side(study: StudyData) -> None:
    (block,) = against_spectra(study.tables["comparisons"])
    assert isinstance(block, Details)
    (table,) = [b for b in block.blocks if isinstance(b, Table)]
    assert len(table.rows) == 45
    assert table.rows[0][:2] == ("H0 total of hidden states", "RankMe of hidden states (control)")
    assert table.rows[0][-2:] == (".200", ".010")
    assert against_spectra(pl.DataFrame()) == []


def test_published_features_are_compared_with_published_spectra(study: StudyData) -> None:
    told = study.tables["comparisons"].with_columns(pl.col("feature", "other").str.replace(LABEL, "published"))
    (block,) = against_spectra(told)
    assert isinstance(block, Details)
    (table,) = [b for b in block.blocks if isinstance(b, Table)]
    assert len(table.rows) == 45
    assert table.rows[0][:2] == ("Published H0 total", "Published RankMe (control)")
    found = section_of("association", with_tables(of_states("clock"), {"comparisons": told}))
    assert [len(t.rows) for t in tables(found) if t.name == "comparisons"] == [9]


def without(of: StudyData, name: str) -> StudyData:
    """Return the study with one table empty."""
    return with_tables(of, {name: of.tables[name].clear()})


def with_text(of: StudyData, n_tokens: dict[str, float]) -> StudyData:
    """Return a study whose runs read a text: a loss of 3 before the last checkpoint, and of 2 there."""
    rows = [
        (run, step, "network", "network", "language_modelling", "{}", statistic, "loss", value, "")
        for run, n in n_tokens.items()
        for step, loss in ((10, 3.0), (100, 2.0))
        for statistic, value in {"loss": loss, "perplexity": 7.5, "bits_per_byte": 1.25, "n_tokens": n}.items()
    ]
    frame = pl.concat([of.frame, pl.DataFrame(rows, schema=of.frame.schema, orient="row")])
    label = pl.DataFrame({"probe": ["language_modelling"], "options": ["{}"], "label": ["language_modelling"]})
    return dataclasses.replace(of, frame=frame, labels=pl.concat([of.labels, label]))


@pytest.mark.parametrize("tokens", [(500.0, 500.0), (500.0, 700.0)])
def test_runs_tell_how_well_they_predict_the_text(study: StudyData, tokens: tuple[float, float]) -> None:
    told = with_text(study, dict(zip(("run-0", "run-1"), tokens, strict=True)))
    found = section_of("moves", told)
    (table,) = (t for t in tables(found) if t.name == "runs")
    by_run = {row[0]: row[-3:] for row in table.rows}
    assert by_run["run-0"] == ("2", "7.5", "1.25")
    assert by_run["run-2"] == ("–", "–", "–")
    assert (NOT_COMPARABLE in str(found)) == (tokens[0] != tokens[1])
    (without,) = (t for t in tables(section_of("moves", study)) if t.name == "runs")
    assert len(without.columns) == len(table.columns) - 3


def test_the_law_of_losses_in_different_tokens_is_not_told() -> None:
    found = of_states("clock")
    law = {"quantity": "text_loss", "n_sizes": 4, "exponent": -0.1, "r_squared": 0.9, "min_p": 0.08, "p_exact": 0.08}
    with_law = with_tables(found, {"scaling": pl.DataFrame([law])})
    for differ in (True, False):
        tokens = {"small": 500.0, "middle": 700.0 if differ else 500.0}
        told = said(with_text(with_law, tokens))
        assert (NOT_COMPARABLE in told) == differ
        assert ("scales as N^" in told) != differ


def test_other_clouds_are_named(study: StudyData) -> None:
    second = "hidden_states:points=texts"
    more = [dataclasses.replace(t, clouds={**t.clouds, second: second, "distances": LABEL}) for t in study.trajectories]
    both = dataclasses.replace(study, trajectories=more)
    figure = Paragraph(("a figure",))
    found = section_of("representations", both, [figure])
    assert found is not None
    assert "of hidden states; the tables also hold hidden states (texts)." in str(found.blocks[-1])
    assert section_of("representations", both) is None


def test_methods_define_what_is_measured_of_states() -> None:
    assert "RankMe" in str(section_of("methods", with_states(material(1))))
    assert "RankMe" not in str(section_of("methods", material(1)))
