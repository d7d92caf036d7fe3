"""Whatever a study lacks is named with the analyses that lack it, and none of them fails."""

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from made_up_material import material

from toposcope.analysis.trajectory import Trajectory
from toposcope.report.not_made import NO_ROW, not_made_table, sentences
from toposcope.report.section import Tables, makers_of
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData

WHOLE = material(4, 12)
Change = Callable[[Trajectory], Trajectory]


def with_trajectories(change: Change) -> StudyData:
    return replace(WHOLE, trajectories=[change(t) for t in WHOLE.trajectories])


def first_checkpoints(t: Trajectory) -> Trajectory:
    features = {name: values[:1] for name, values in t.features.items()}
    targets, covariates = ({name: values[:1] for name, values in of.items()} for of in (t.targets, t.covariates))
    return Trajectory(t.run, t.steps[:1], features, targets, covariates)


STUDIES = {
    "nothing": (WHOLE, {}),
    "size": (
        replace(WHOLE, runs=WHOLE.runs.with_columns(n_parameters=pl.lit(None, pl.Int64))),
        {"scaling": "the number of parameters of"},
    ),
    "loss": (
        with_trajectories(lambda t: replace(t, targets={})),
        dict.fromkeys(("association", "comparisons"), "loss"),
    ),
    "features": (with_trajectories(lambda t: replace(t, features={}, layers={}, groups={})), {"layer_onsets": "probe"}),
    "covariates": (with_trajectories(lambda t: replace(t, covariates={})), {}),
    "checkpoints": (
        with_trajectories(first_checkpoints),
        {"layer_onsets": "measured checkpoints"},
    ),
    "complete": (replace(WHOLE, runs=WHOLE.runs.with_columns(status=pl.lit("running"))), {"scaling": "complete runs"}),
    "runs": (replace(WHOLE, trajectories=[], runs=WHOLE.runs.clear()), {"scaling": "3 sizes; 0 known"}),
    "log": (replace(WHOLE, log=WHOLE.log.clear()), {}),
}


@pytest.mark.parametrize("without", STUDIES)
def test_an_analysis_that_is_not_made_names_what_it_lacks(without: str) -> None:
    data, expected = STUDIES[without]
    sections = report_sections()
    tables = Tables(data, {name: maker for name, maker in makers_of(sections).items() if name != "not_made"})
    object.__setattr__(data, "tables", tables)
    found = not_made_table(data, sections)
    lacks = dict(found.iter_rows())
    empty = {name for section in sections for name in section.needs if name in tables and not len(tables[name])}
    assert empty <= lacks.keys()
    assert [name for name, words in expected.items() if words not in lacks[name]] == []
    assert [name for name, lacking in lacks.items() if lacking == NO_ROW] == []
    assert len(sentences(found)) <= len(set(lacks.values()))
    assert {"curvature", "landscape", "between_runs"} <= lacks.keys()
