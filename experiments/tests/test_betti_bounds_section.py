"""The sentence on basins that an architecture allows, on the page of a study."""

import dataclasses

import msgspec
import polars as pl
from made_up_material import material
from section_tools import section_of

from toposcope.report.document import Paragraph
from toposcope.report.study_data import StudyData
from toposcope.study import Declaration
from toposcope.study.declared_runs import DeclaredRun

OPTIONS = msgspec.json.encode({"length": 128, "sequences": 8}).decode()


def with_planes() -> StudyData:
    """Two runs whose planes have one basin at the last checkpoint."""
    study = material(2, 3)
    place = ("network", "network", "landscape", OPTIONS, "minima", "topology")
    rows = [
        (t.run, step, *place, 2.0 - (k > 0), "") for t in study.trajectories for k, step in enumerate((0, 100, 200))
    ]
    frame = pl.concat([study.frame, pl.DataFrame(rows, schema=study.frame.schema, orient="row")])
    label = pl.DataFrame({"probe": ["landscape"], "options": [OPTIONS], "label": ["landscape"]})
    return dataclasses.replace(study, frame=frame, labels=pl.concat([study.labels, label]))


def test_the_bound_of_the_smallest_model_stands_next_to_what_was_found() -> None:
    study = with_planes()
    runs = [DeclaredRun(size="med-21k", name="run-0"), DeclaredRun(size="tiny-3k", name="run-1")]
    declared = Declaration(name="study", runs=runs, probes=study.declaration.probes)
    found = section_of("betti-bounds", dataclasses.replace(study, declaration=declared))
    assert found is not None
    (said,) = found.blocks
    assert isinstance(said, Paragraph)
    assert said.parts[0] == (
        "run-1: by Khovanskii's theorem a loss of this architecture on up to 1,016 tokens has fewer than "
        "10^10,666,707,487 basins, a number of that many digits, which says nothing: 1 was found on a plane."
    )


def test_of_models_that_are_not_of_the_family_nothing_is_said() -> None:
    assert section_of("betti-bounds", with_planes()) is None
    assert section_of("betti-bounds", material(2, 3)) is None
