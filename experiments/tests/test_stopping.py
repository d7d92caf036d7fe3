"""``toposcope stopping``: what it prints and writes, on a study of a few small runs."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

from toposcope.cli import toposcope
from toposcope.study import load_declaration, run_study
from toposcope_experiments.published_study.importing import import_study

DECLARED = """
name = "small"
[corpus]
source = "{text}"
[training]
steps = 30
batch_size = 4
learning_rate = 1e-2
warmup_steps = 4
checkpoint_every = 3
{runs}
[[probes]]
name = "{probe}"
"""
RUN = '[[runs]]\nname = "{name}"\nsize = {{hidden = {hidden}, layers = 1, heads = 2, context = 16}}\n'


def a_study(folder: Path, probe: str) -> Path:
    """Train and measure three runs."""
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat", "and", "ran"], 3000)
    (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
    runs = "".join(RUN.format(name=f"run-{hidden}", hidden=hidden) for hidden in (6, 8, 10))
    text = DECLARED.format(text=folder / "text.txt", runs=runs, probe=probe)
    (folder / "study.toml").write_text(text, encoding="utf-8")
    assert not run_study(load_declaration(folder / "study.toml"), folder / "out", workers=1)
    return folder / "out"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_study(tmp_path_factory.mktemp("stopping"), "neural_persistence")


def told(*arguments: str | Path) -> Result:
    return CliRunner().invoke(toposcope, ["stopping", *map(str, arguments)], env={"COLUMNS": "200"})


def test_it_tells_of_every_rule_beside_a_fixed_fraction(study: Path) -> None:
    done = told(study)
    assert done.exit_code == 0
    sentences = [line for line in done.stdout.splitlines() if "a fixed fraction that saves as much pays" in line]
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
def test_the_tables_and_the_charts_are_written(study: Path, tmp_path: Path) -> None:
    done = told(study, "--out", tmp_path / "new" / "folder")
    assert done.exit_code == 0
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    names = ("early-stopping-difference", "early-stopping")
    pictures = [f"{name}.{kind}" for name in names for kind in ("pdf", "png", "svg")]
    assert files == [*pictures, "matched.csv", "rules.csv", "stops.csv"]
    assert all(str(tmp_path / "new" / "folder" / name) in done.stdout for name in files)
    stops = pl.read_csv(tmp_path / "new" / "folder" / "stops.csv", infer_schema_length=None)
    assert sorted(stops["run"].unique()) == ["run-10", "run-6", "run-8"]
    assert (stops["saved_flops"] >= 0).all()


def test_programs_are_told_the_same(study: Path) -> None:
    done = told(study, "--json")
    assert done.exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(done.stdout, parse_constant=refuse)
    assert sorted(found) == ["matched", "notes", "rules", "stops", "summary"]
    assert len(found["stops"]) == 3 * len(found["matched"])
    assert {row["p"] for row in found["matched"] if row["rule"] == "fixed_fraction"} == {None}
    assert len(found["summary"]) == len(found["rules"]) == 3


@pytest.mark.slow
def test_without_neural_persistence_its_rule_is_left_out_and_told(tmp_path: Path) -> None:
    done = told(a_study(tmp_path, "controls"))
    assert done.exit_code == 0
    assert "note: Patience on neural persistence (Rieck et al.) is left out of all runs" in done.stderr
    assert "Patience on the loss: over" in done.stdout


@pytest.mark.slow
@pytest.mark.reference
def test_published_features_are_enough(published_study: Path, tmp_path: Path) -> None:
    declaration = import_study(published_study, tmp_path / "p").declaration
    assert not run_study(declaration, tmp_path / "p", workers=1, measured=False)
    done = told(tmp_path / "p")
    assert done.exit_code == 0
    assert "Patience on neural persistence (Rieck et al.): over 60 settings and 2 runs" in done.stdout
    assert "neural persistence was not measured" in done.stderr


def test_a_folder_that_is_no_study_is_a_clear_line(tmp_path: Path) -> None:
    done = told(tmp_path)
    assert done.exit_code == 1
    assert "no study here" in str(done.exception)
