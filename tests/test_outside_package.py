"""A package of somebody else adds one of each: commands show all of them at work, and refuse what is at fault."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from commands import called
from safetensors.numpy import save_file

from toposcope.checkpoints import formats as checkpoint_formats
from toposcope.forecasting.forecasters import forecasters
from toposcope.logs import formats as log_formats
from toposcope.probes import probe_types
from toposcope.probes.needs import needs
from toposcope.report.sections import report_sections

PACKAGE = Path(__file__).parent / "support" / "outsider"
ENTRY_POINTS = {
    "toposcope.probes": "target_distance = outsider.targets",
    "toposcope.needs": "targets = outsider.targets",
    "toposcope.formats": "square = outsider.square_file",
    "toposcope.logs": "losses = outsider.loss_lines",
    "toposcope.forecasters": "first = outsider.first_loss",
    "toposcope.sections": "counts = outsider.study_section",
    "toposcope.backtest_sections": "counts = outsider.backtest_section",
}
LAYER = "layers.0.mlp.fc1.weight"
STEPS = (0, 10, 20)


def distribution(site: Path, name: str, entry_points: dict[str, str]) -> None:
    """Write what an installer writes beside a package."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{entry}\n" for group, entry in entry_points.items()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with this one in it."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, site / "outsider")
    distribution(site, "outsider", ENTRY_POINTS)
    return site


@pytest.fixture
def fresh_registries() -> Iterator[None]:
    """What is installed for a test is known to this process while the test runs."""
    known = (probe_types, needs, checkpoint_formats._formats, log_formats._formats, forecasters, report_sections)
    for registry in known:
        registry.cache_clear()
    yield
    for registry in known:
        registry.cache_clear()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A series in the package's format, with the input that its probe needs."""
    folder = tmp_path / "run"
    folder.mkdir()
    for step in STEPS:
        weights(step).tofile(folder / f"step_{step}.square")
    write_target(folder, 3.0)
    return folder


def weights(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(6, 6)).astype(np.float32)


def write_target(folder: Path, norm: float) -> None:
    (folder / "targets.json").write_text(json.dumps({LAYER: norm}))


def distances(target: float) -> list[float]:
    return [abs(float(np.linalg.norm(weights(step).astype(np.float64))) - target) for step in STEPS]


def logs(folder: Path) -> Path:
    """Complete logs of two sizes, two runs each, in the package's format."""
    folder.mkdir()
    T = np.arange(10, 1001, 10)
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * T / 1000))
    for k, size in enumerate((1e6, 1e6, 2e6, 2e6)):
        noise = np.random.default_rng(k).normal(0, 0.004, len(T))
        loss = 3 - size / 1e7 + 6 * T**-0.45 - 0.2 * (1 - rate) + noise
        rows = (f"{t} {lr} {value}\n" for t, lr, value in zip(T, rate, loss, strict=True))
        (folder / f"{size:.0f}-{k}.losses").write_text("".join(rows))
    return folder


def command(*words: str | Path, path: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own that has a folder of packages on its path."""
    code = "import sys; sys.argv[0] = 'toposcope'; from toposcope.cli import main; main()"
    searched = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": searched, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def network_distances(output: str) -> list[float]:
    rows: list[dict[str, Any]] = json.loads(output)
    assert {(row["probe"], row["statistic"], row["kind"]) for row in rows} == {("target_distance", "distance", "norm")}
    return [row["value"] for row in rows if row["layer"] == "network"]


@pytest.mark.slow
def test_measure_with_a_probe_an_input_and_a_checkpoint_format(site: Path, checkpoints: Path, tmp_path: Path) -> None:
    words = ("measure", checkpoints, "--probe", "target_distance", "--workers", "2", "--json")
    found = network_distances(succeeded(command(*words, path=site, directory=tmp_path)))
    assert found == pytest.approx(distances(3.0), rel=1e-12)


@pytest.mark.slow
def test_a_study_measures_again_when_the_input_changes(site: Path, checkpoints: Path, tmp_path: Path) -> None:
    declared = (
        '[[series]]\npath = "run"\n[[probes]]\nname = "target_distance"\n[[probes]]\nname = "neural_persistence"\n'
    )
    (tmp_path / "study.toml").write_text(f'name = "study"\n{declared}')
    run = ("study", "run", "study.toml", "--out", "study", "--workers", "1")
    assert "An outsider counted 3." in succeeded(command(*run, path=site, directory=tmp_path))
    assert "Counted by an outsider" in (tmp_path / "study/report/index.html").read_text()
    assert (tmp_path / "study/report/tables/outsider_counts.csv").read_text() == "run,checkpoints\nrun,3\n"
    before = measurements(tmp_path / "study")
    write_target(checkpoints, 4.0)
    succeeded(command(*run, path=site, directory=tmp_path))
    after = measurements(tmp_path / "study")
    assert after["neural_persistence"] == before["neural_persistence"]  # not measured again
    assert not after["target_distance"] & before["target_distance"]
    exported = ("export", "study", "--format", "csv", "--out", "frames")
    succeeded(command(*exported, path=site, directory=tmp_path))
    frame = pl.read_csv(tmp_path / "frames/features.csv").filter(probe="target_distance", layer="network")
    assert frame["value"].to_list() == pytest.approx(distances(4.0), rel=1e-12)


def measurements(study: Path) -> dict[str, set[int]]:
    """Return the rows of the store by probe."""
    with sqlite3.connect(study / "study.db") as connection:
        rows = connection.execute("SELECT probe, id FROM measurements").fetchall()
    return {probe: {row for name, row in rows if name == probe} for probe, _ in rows}


@pytest.mark.slow
def test_without_its_input_a_probe_fails_in_one_line(site: Path, checkpoints: Path, tmp_path: Path) -> None:
    (checkpoints / "targets.json").unlink()
    done = command("measure", checkpoints, "--probe", "target_distance", path=site, directory=tmp_path)
    assert done.returncode == 1
    assert "no targets.json beside it; save one" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_forecaster_predicts_from_its_logs(site: Path, tmp_path: Path) -> None:
    folder = logs(tmp_path / "logs")
    (log,) = folder.glob("*-3.losses")
    begun = tmp_path / log.name
    begun.write_text("".join(log.read_text().splitlines(keepends=True)[:50]))
    schedule = ("--schedule", "cosine:steps=1000")
    out = succeeded(command("forecast", begun, *schedule, "--json", path=site, directory=tmp_path))
    assert json.loads(out)["forecasts"]["first"]["loss"] == float(log.read_text().split()[2])


@pytest.mark.slow
def test_a_backtest_of_its_logs_has_its_section(site: Path, tmp_path: Path) -> None:
    folder = logs(tmp_path / "logs")
    words = ("backtest", folder, "--fractions", "0.5", "--workers", "1", "--out", "backtest")
    succeeded(command(*words, path=site, directory=tmp_path))
    (page,) = (tmp_path / "backtest").glob("*.html")
    assert "An outsider counted 4 runs." in page.read_text()


@pytest.mark.parametrize(
    ("group", "code", "words", "reason"),
    [
        (
            "toposcope.probes",
            "import no_such_module",
            ("measure", "run", "--workers", "1"),
            "No module named 'no_such_module'",
        ),
        (
            "toposcope.probes",
            "from toposcope.probes.rips import RipsProbe",
            ("measure", "run", "--workers", "1"),
            "holds nothing to add",
        ),
        (
            "toposcope.needs",
            "from toposcope.probes.needs import Need\nNEED = Need('model', print, print)",
            ("measure", "run", "--workers", "1"),
            "the name 'model' is taken by toposcope",
        ),
        ("toposcope.formats", "1 / 0", ("measure", "run", "--workers", "1"), "ZeroDivisionError"),
        ("toposcope.logs", "claims = runs = None\nraise OSError('gone')", ("forecast", "run/a.csv"), "OSError: gone"),
        ("toposcope.forecasters", "def", ("forecast", "run/a.csv", "--schedule", "cosine:steps=9"), "SyntaxError"),
        (
            "toposcope.sections",
            "1 / 0",
            ("study", "run", "study.toml", "--out", "study", "--workers", "1"),
            "ZeroDivisionError",
        ),
    ],
)
def test_a_package_at_fault_is_refused_in_one_line(
    group: str,
    code: str,
    words: tuple[str, ...],
    reason: str,
    checkpoints: Path,
    tmp_path: Path,
    fresh_registries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "site"
    distribution(other, "careless", {group: "bad = careless_module"})
    (other / "careless_module.py").write_text(code)
    (checkpoints / "a.csv").write_text("step,loss\n1,3\n2,2.5\n3,2.25\n4,2\n5,1.9\n6,1.8\n")
    (tmp_path / "study.toml").write_text('name = "study"\n[[series]]\npath = "run"\n')
    save_file({LAYER: weights(0)}, checkpoints / "step_0.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(other)
    monkeypatch.delitem(sys.modules, "careless_module", raising=False)
    done = called(*words)
    assert done.code in (1, 2)
    (line,) = [text for text in done.err.splitlines() if "careless" in text]
    assert f"careless, entry point bad = careless_module of {group}: " in line
    assert reason in line
