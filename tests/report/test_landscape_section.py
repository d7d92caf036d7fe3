"""The section on planes of the loss: basins and ranges with their spreads, in charts and a table."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from made_up_material import material
from numpy.typing import NDArray
from section_tools import charts_of, section_of

from toposcope.errors import ToposcopeError
from toposcope.report.sections.landscape import SECTION, landscape_charts, landscape_rows, stored_plane_chart
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table

STEPS = (0, 10, 100)


def with_planes(n_runs: int, *, spread: bool = True) -> StudyData:
    """A study in whose first checkpoints the planes have two basins, and one later."""
    study = material(n_runs, 3)
    rows = []
    for k in range(n_runs):
        for i, step in enumerate(STEPS):
            values = {"minima": 2.0 if i == 0 else 1.0, "range": 3.0 + i}
            for suffix, noise in (("", None), (".noise", 0.5), (".batches.noise", 0.25), (".resolution.noise", 0.125)):
                for name, value in values.items():
                    if noise is None or spread:
                        row = (f"run-{k}", step, "network", "network", "landscape", "{}", name + suffix)
                        rows.append((*row, "topology", value if noise is None else noise, ""))
    frame = pl.concat([study.frame, pl.DataFrame(rows, schema=study.frame.schema, orient="row")])
    label = pl.DataFrame({"probe": ["landscape"], "options": ["{}"], "label": ["landscape"]})
    full = dataclasses.replace(study, frame=frame, labels=pl.concat([study.labels, label]))
    return dataclasses.replace(full, tables={**full.tables, "landscape": landscape_rows(full)})


@pytest.mark.parametrize("n_runs", [1, 3])
def test_the_charts_hold_what_was_measured(n_runs: int) -> None:
    study = with_planes(n_runs)
    charts = charts_of(landscape_charts, study)
    assert list(charts) == ["landscape-minima", "landscape-range"]
    for chart in charts.values():
        check_chart(chart)
    bands = rows_of_chart(charts["landscape-range"], "low", "high")
    assert {(row["low"], row["high"]) for row in bands if row["step"] == 0} == {(2.5, 3.5)}
    assert charts["landscape-range"].title == (
        "The loss ranges over 3 to 5 nats per token on the planes, ± up to 0.5 between planes"
    )


def test_the_plane_of_the_last_checkpoint_is_drawn() -> None:
    study = with_planes(1)
    options = '{"directions":"hessian","span":2.0}'
    x, y = np.meshgrid(np.linspace(-2, 2, 9), np.linspace(-2, 2, 7), indexing="ij")
    asked = []

    def states(run: str, step: int, label: str) -> dict[str, NDArray[np.float32]]:
        asked.append((run, step, label))
        return {"network": ((x - 1) ** 2 + 3 * y**2 + 1).astype(np.float32)}

    planes = study.frame.get_column("probe") == "landscape"
    frame = study.frame.with_columns(options=pl.when(planes).then(pl.lit(options)).otherwise("options"))
    label = pl.DataFrame({"probe": ["landscape"], "options": [options], "label": ["landscape:x"]})
    drawn = stored_plane_chart(dataclasses.replace(study, frame=frame, labels=label, states=states))
    assert drawn is not None
    check_chart(drawn)
    assert asked == [("run-0", 100, "landscape:x")]
    assert drawn.title == "run-0, step 100: One minimum"
    (minimum,) = (row for row in rows_of_chart(drawn, "kind", "x") if row["kind"] == "minimum")
    assert (minimum["x"], minimum["y"]) == (1.0, 0.0)


def test_a_plane_whose_file_is_lost_is_not_drawn() -> None:
    def states(*_: object) -> dict[str, NDArray[np.float32]]:
        raise ToposcopeError("lost")

    assert stored_plane_chart(dataclasses.replace(with_planes(1), states=states)) is None


def test_one_plane_has_no_band() -> None:
    charts = charts_of(landscape_charts, with_planes(1, spread=False))
    assert not rows_of_chart(charts["landscape-range"], "low", "high")


def test_the_finding_counts_checkpoints_with_several_basins() -> None:
    counts = "The planes of 2 of 6 checkpoints have more than one basin"
    assert SECTION.finding(with_planes(2)) == counts + "; their number differs between the planes of 6"
    assert SECTION.finding(with_planes(2, spread=False)) == counts
    assert not SECTION.finding(material(2, 3))


def test_the_table_has_each_statistic_with_its_spread() -> None:
    found = section_of("landscape", with_planes(2))
    assert found is not None
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    assert table.rows[0] == ("run-0", "100", "minima", "1", "0.5", "0.25", "0.125")


def test_a_study_without_planes_has_no_section() -> None:
    assert section_of("landscape", material(2, 3)) is None
