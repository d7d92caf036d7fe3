"""The shipped population, with fewer runs: trained, measured and reported; its controls come out as they must."""

import msgspec
import polars as pl
import pytest
from commands import called
from property_examples import THOROUGH

from toposcope.analysis.between_runs.verdict import sentence, topology_rows
from toposcope.analysis.verdict import BEYOND, NONE, TREND
from toposcope.study import Study
from toposcope_experiments import shipped_study

N_RUNS = 64


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="minutes: every night, with PROPERTY_EXAMPLES=all")
def test_controls_of_the_shipped_population(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("population")
    declared = shipped_study("population")
    assert declared.population is not None
    fewer = msgspec.structs.replace(declared, population=msgspec.structs.replace(declared.population, runs=N_RUNS))
    (folder / "fewer.toml").write_text(fewer.to_toml())
    done = called("study", "run", folder / "fewer.toml", "--out", folder / "study", "--workers", "2")
    assert done.code == 0, done.err
    faults = Study.load(folder / "study").findings().filter(severity="fault")
    assert faults.is_empty(), "nothing was damaged"
    table = pl.read_csv(folder / "study/report/tables/between_runs.csv", infer_schema_length=None)
    final = table.filter(target="final validation loss", held_out="runs")
    assert set(final["verdict"]) <= {BEYOND, TREND, NONE}
    assert sentence(final) in (folder / "study/report/report.md").read_text().replace("\\_", "_")
    assert set(final["n_runs"]) == {N_RUNS}
    assert final["fraction"].n_unique() == 7
    tested = topology_rows(table)
    assert tested["detectable"].is_between(0, 0.6).all(), "planted features are found"
    assert {"random projections", "placebo twin"} <= set(table["added"])
    for probe in ("random_projections", "placebo_twin"):
        assert tested[f"low_over_{probe}"].is_not_null().all(), "topology is compared with each placebo"
