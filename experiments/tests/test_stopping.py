"""``toposcope stopping``: what it prints and writes, on a study of a few small runs."""

from pathlib import Path

import polars as pl
import pytest
from commands import Done, called, complaint_of, strict_json
from small_family import small_family

from toposcope.study import run_study
from toposcope_experiments.published_study.importing import import_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_family(tmp_path_factory.mktemp("stopping"), "neural_persistence")


def told(*arguments: str | Path) -> Done:
    done = called("stopping", *arguments)
    assert done.code == 0
    return done


def test_it_tells_of_every_rule_beside_a_fixed_fraction(study: Path) -> None:
    done = told(study)
    sentences = [line for line in done.out.splitlines() if "a fixed fraction that saves as much pays" in line]
    assert [line.split(":")[0] for line in sentences] == [
        "Patience on neural persistence (Rieck et al.)",
        "Patience on the loss",
        "Forecast gain below a price",
    ]
    assert all(
        line.endswith("not shown to be better or worse than a fixed fraction, which 3 runs cannot show.")
        for line in sentences
    )


@pytest.mark.slow
def test_the_tables_are_written(study: Path, tmp_path: Path) -> None:
    done = told(study, "--out", tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["matched.csv", "rules.csv", "stops.csv"]
    assert all(str(tmp_path / "new" / "folder" / name) in done.out for name in files)
    stops = pl.read_csv(tmp_path / "new" / "folder" / "stops.csv", infer_schema_length=None)
    assert sorted(stops["run"].unique()) == ["run-10", "run-6", "run-8"]
    assert (stops["saved_flops"] >= 0).all()


def test_programs_are_told_the_same(study: Path) -> None:
    done = told(study, "--json")

    found = strict_json(done.out)
    assert sorted(found) == ["matched", "notes", "rules", "stops", "summary"]
    assert len(found["stops"]) == 3 * len(found["matched"])
    assert {row["p"] for row in found["matched"] if row["rule"] == "fixed_fraction"} == {None}
    assert len(found["summary"]) == len(found["rules"]) == 3


@pytest.mark.slow
def test_without_neural_persistence_its_rule_is_left_out_and_told(tmp_path: Path) -> None:
    done = told(small_family(tmp_path, "controls"))
    assert "note: Patience on neural persistence (Rieck et al.) is left out of all runs" in done.err
    assert "Patience on the loss: over" in done.out


@pytest.mark.slow
@pytest.mark.reference
def test_published_features_are_enough(published_study: Path, tmp_path: Path) -> None:
    declaration = import_study(published_study, tmp_path / "p").declaration
    assert not run_study(declaration, tmp_path / "p", workers=1, measured=False)
    done = told(tmp_path / "p")
    assert "Patience on neural persistence (Rieck et al.): over 60 settings and 2 runs" in done.out
    assert "neural persistence was not measured" in done.err


def test_a_folder_that_is_no_study_is_a_clear_line(tmp_path: Path) -> None:
    assert "no study here" in complaint_of("stopping", tmp_path)
