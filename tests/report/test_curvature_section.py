"""The section on curvature: what was measured, with its errors, in charts and a table."""

import dataclasses

import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from made_up_material import material
from section_tools import charts_of, section_of

from toposcope.probes.curvature import EDGES
from toposcope.report.sections.curvature import SECTION, curvature_rows, density_chart, eigenvalue_chart, trace_chart
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table

STEPS = (0, 10, 100)


def with_curvature(n_runs: int, *, density: bool = True) -> StudyData:
    """A study whose sharpness rises from 1 to 4 in its first run and falls in all others."""
    study = material(n_runs, 3)
    rows = []
    for k in range(n_runs):
        for i, step in enumerate(STEPS):
            top = 4.0**i if k == 0 else 4.0**-i
            values = {"sharpness": top, "eigenvalue_2": top / 2, "smallest_eigenvalue": -0.1, "trace": 10 * top}
            values |= {"positive_share": 0.25, "negative_share": 0.125, "filter_normalised_sharpness": 7.0}
            if density:
                values |= {f"density@{edge:g}": place / 41 for place, edge in enumerate(EDGES)}
            for name, value in values.items():
                for suffix, number in (("", value), (".noise", 0.01)):
                    row = (f"run-{k}", step, "network", "network", "curvature", "{}", name + suffix)
                    rows.append((*row, "spectrum", number, ""))
    frame = pl.concat([study.frame, pl.DataFrame(rows, schema=study.frame.schema, orient="row")])
    label = pl.DataFrame({"probe": ["curvature"], "options": ["{}"], "label": ["curvature"]})
    full = dataclasses.replace(study, frame=frame, labels=pl.concat([study.labels, label]))
    return dataclasses.replace(full, tables={**full.tables, "curvature": curvature_rows(full)})


@pytest.mark.parametrize("n_runs", [1, 3])
def test_the_charts_hold_what_was_measured(n_runs: int) -> None:
    study = with_curvature(n_runs)
    charts = [charts_of(draw, study) for draw in (eigenvalue_chart, trace_chart, density_chart)]
    assert [list(found) for found in charts] == [["sharpness"], ["hessian-trace"], ["hessian-density"]]
    for found in charts:
        for chart in found.values():
            check_chart(chart)
    lines = rows_of_chart(charts[0]["sharpness"], "run", "step", "series")
    assert {row["series"] for row in lines} == {"largest", "2nd"}
    assert {row["value"] for row in lines if row["series"] == "largest" and row["run"] == "run-0"} == {1, 4, 16}
    bands = rows_of_chart(charts[1]["hessian-trace"], "low", "high")
    assert {(row["low"], row["high"]) for row in bands if row["step"] == 0} == {(9.98, 10.02)}
    bins = rows_of_chart(charts[2]["hessian-density"], "low", "high", "share")
    assert len(bins) == 41
    assert sum(row["share"] for row in bins) == pytest.approx(1)


def test_the_finding_says_where_sharpness_goes() -> None:
    assert SECTION.finding(with_curvature(1)) == "Sharpness, the largest eigenvalue of the Hessian, rises in the run"
    assert SECTION.finding(with_curvature(3)).endswith("rises in 1 and falls in 2 of 3 runs")
    assert not SECTION.finding(material(2, 3))


def test_the_table_has_each_estimate_beside_its_error() -> None:
    found = section_of("curvature", with_curvature(2))
    assert found is not None
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["run-0", "run-1"]
    assert table.rows[0][1:4] == ("100", "16", "0.01")
    assert section_of("curvature", material(2, 3)) is None


def test_without_a_stored_density_there_is_no_chart_of_it() -> None:
    assert density_chart(with_curvature(1, density=False)) is None
    assert eigenvalue_chart(material(1, 3)) is None
