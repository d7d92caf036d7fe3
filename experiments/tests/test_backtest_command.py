"""``toposcope backtest``: what it prints and writes, and what it refuses."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from commands import strict_json

from toposcope.cli import toposcope

T = np.arange(10, 1001, 10)


def rows(name: str, level: float, seed: int, family: str, parameters: float) -> list[str]:
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * T / 1000))
    noise = np.random.default_rng(seed).normal(0, 0.004, len(T))
    loss = level + 6 * T**-0.45 - 0.2 * (1 - rate) + noise
    return [f"{name},{family},{parameters:g},{t},{x:.5f},{r:.6f}" for t, x, r in zip(T, loss, rate, strict=True)]


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two families, three sizes each, and one that ended early."""
    lines = ["run,family,n_params,step,loss,lr"]
    for i in range(12):
        size, family = i % 3, "ab"[i % 2]
        lines += rows(f"r{i}", 3.2 - 0.2 * size + 0.01 * i, i, family, 5e7 * 2**size)
    path = tmp_path_factory.mktemp("backtest") / "curves.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def told(*arguments: str | Path) -> Result:
    words = ["backtest", *map(str, arguments), "--workers", "1"]
    return CliRunner().invoke(toposcope, words, env={"COLUMNS": "200"})


@pytest.mark.slow
def test_a_table_a_fraction_then_sentences(curves: Path) -> None:
    done = told(curves, "--fractions", "0.5,.3")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    titles = [line.strip() for line in lines if "MAE and bias in nats" in line]
    assert titles == ["0.3 seen; MAE and bias in nats", "0.5 seen; MAE and bias in nats"]
    assert sum(line.startswith("│ default") for line in lines) == 2
    assert any("the default, by family" in line for line in lines)
    assert any(line.startswith("12 runs of 2 families in 6 groups") for line in lines)
    assert any(line.startswith("With 30% of a run seen the default is off by ") for line in lines)
    against = [line for line in lines if line.startswith("Skill of the default against ")]
    assert [line.split()[5].rstrip(":") for line in against] == ["last", "power_law", "annealing"]
    assert all("(6 groups, p " in line for line in against)


@pytest.mark.slow
def test_files_and_programs_are_told_the_same(curves: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = told(curves, "--fractions", "0.5", "--json", "--out", out)
    assert done.exit_code == 0, done.output

    found = strict_json(done.stdout)
    assert list(found) == sorted(found)
    assert {row["run"] for row in found["rows"]} == {f"r{i}" for i in range(12)}
    scored = {row["forecaster"]: row for row in found["scores"]}
    errors = [abs(r["predicted"] - r["final"]) for r in found["rows"] if r["forecaster"] == "default"]
    assert scored["default"]["mae"] == pytest.approx(np.mean(errors))
    for name, key in (("forecasts", "rows"), ("scores", "scores"), ("skills", "skills"), ("families", "families")):
        assert len(pl.read_csv(out / "tables" / f"{name}.csv", infer_schema_length=None)) == len(found[key])
    report = (out / "report.md").read_text()
    assert report.startswith("# Backtest of forecasts\n\n**12 runs of 2 families")


def test_few_groups_show_nothing(curves: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    lines = curves.read_text().splitlines()
    few.write_text("\n".join([lines[0], *(line for line in lines if line.startswith(("r0,", "r2,")))]) + "\n")
    done = told(few, "--fractions", "0.5")
    assert done.exit_code == 0, done.output
    assert "2 groups cannot show that one forecaster is better than another: at least 6" in done.stdout


def test_what_was_not_seen_is_told(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text(
        "run,step,loss\n" + "".join(f"{r},{s},{x - s / 10}\n" for r, x in (("a", 4), ("b", 5)) for s in (8, 9, 10))
    )
    done = told(path, "--fractions", ".1", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "With 10% of a run seen no run can be forecast: nothing was logged in the first 10%." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent",), "does not exist"),
        (("CURVES", "--fractions", "0.5,x"), "expected numbers"),
        (("CURVES", "--fractions", "1.5"), "between 0 and 1"),
        (("CURVES", "--split", "sizes"), "'sizes'"),
        (("CURVES", "--unit", "miles"), "miles"),
        (("CURVES", "--column", "loss=absent"), "no column 'absent'"),
    ],
)
def test_mistakes_are_bad_use_in_one_line(curves: Path, arguments: tuple[str, ...], words: str) -> None:
    done = told(*(str(curves) if each == "CURVES" else each for each in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_collections_that_cannot_be_scored_are_bad_use(curves: Path, tmp_path: Path) -> None:
    lines = curves.read_text().splitlines()
    one = tmp_path / "one.csv"
    one.write_text("\n".join([lines[0], *(line for line in lines if line.startswith("r0,"))]) + "\n")
    assert "at least two complete runs, not 1" in told(one).stderr
    assert "other" in told(one, "--split", "family").stderr or told(one, "--split", "family").exit_code == 2
    (tmp_path / "mixed").mkdir()
    for name, column in (("a", "loss"), ("b", "bpb")):
        (tmp_path / "mixed" / f"{name}.csv").write_text(f"step,{column}\n1,3\n2,2\n")
    done = told(tmp_path / "mixed")
    assert (done.exit_code, "units differ" in done.stderr) == (2, True)
