"""The shipped population, with fewer runs: trained, measured and reported; its controls come out as they must."""

import msgspec
import polars as pl
import pytest
from commands import called
from property_examples import THOROUGH

from toposcope.analysis.nested_models.fitting import WITH_PROJECTIONS, WITH_TWIN
from toposcope.analysis.verdict import BEYOND, NONE, TREND
from toposcope.study import Study
from toposcope_experiments import shipped_study

N_RUNS = 64
"""With 40, a third of the planted features is missed."""


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
    tables = folder / "study" / "report" / "tables"
    verdicts = pl.read_csv(tables / "nested_verdicts.csv")
    final = verdicts.row(0, named=True)
    assert final["target"] == "final validation loss"
    assert final["verdict"] in {BEYOND, TREND, NONE}
    assert final["sentence"] in (folder / "study/report/report.md").read_text().replace("\\_", "_")
    assert (final["n_runs"], final["n_fractions"]) == (N_RUNS, 7)
    for row in verdicts.filter(pl.col("n_runs").is_not_null()).iter_rows(named=True):
        assert row["n_shuffled_found"] <= 0.1 * row["n_shuffled"] > 0, "topology of other runs finds nothing"
        assert row["n_planted_found"] >= 0.8 * row["n_planted"] > 0, "planted features are found"
        assert row["skill_projections"] is not None
        assert row["skill_twin"] is not None
    models = pl.read_csv(tables / "nested_models.csv", infer_schema_length=None)
    assert {WITH_PROJECTIONS, WITH_TWIN} <= set(models["model"])
    compared = models.filter(pl.col("p_adjusted").is_not_null())
    for control in ("projections", "twin"):
        assert compared[f"p_beside_{control}"].is_not_null().all(), "topology is compared with each control"
