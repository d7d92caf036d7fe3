"""The package of ``docs/extend.md``, installed: its commands show each extension at work; faults are refused."""

import ast
import json
import logging
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import called
from extend_page import COMMANDS, ENTRY_POINTS, MODULES, PAGE, distribution, install_page
from safetensors.numpy import save_file

from toposcope.checkpoints import formats as checkpoint_formats
from toposcope.checkpoints import sources
from toposcope.cli import _all_commands, toposcope
from toposcope.extend import NETWORK, Entry, Failure, Measurement, each_layer, stacked
from toposcope.forecasting.forecasters import forecasters
from toposcope.logs import formats as log_formats
from toposcope.monitor.events import Alert
from toposcope.monitor.sinks.opening import open_sinks, sink_makers
from toposcope.probes import probe_types
from toposcope.probes.needs import needs
from toposcope.report.sections import report_sections

LAYER = "layers.0.mlp.fc1.weight"
STEPS = (0, 10, 20)


def weights(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(6, 6)).astype(np.float32)


def clear_registries() -> None:
    for registry in (
        *(probe_types, needs, checkpoint_formats._formats, sources._kinds, log_formats._formats),
        *(forecasters, sink_makers, report_sections),
    ):
        registry.cache_clear()
    toposcope.commands.clear()
    toposcope._collect = _all_commands
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_extensions", "careless_module")]:
        del sys.modules[name]


@pytest.fixture
def fresh_registries() -> Iterator[None]:
    """What is installed for a test is known to this process while the test runs."""
    clear_registries()
    yield
    clear_registries()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with that of the page in it."""
    site = tmp_path_factory.mktemp("site")
    install_page(site)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch, fresh_registries: None) -> None:
    monkeypatch.syspath_prepend(site)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands of the page are called with."""
    (tmp_path / "checkpoints").mkdir()
    for step in STEPS:
        save_file({LAYER: weights(step)}, tmp_path / f"checkpoints/step_{step}.safetensors")
        (tmp_path / f"checkpoints/activations_{step}.json").write_text(json.dumps({LAYER: step / 10}))
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tmp_path / "checkpoints").glob("*.safetensors")):
            archive.write(file, file.name)
    (tmp_path / "matrices").mkdir()
    np.save(tmp_path / "matrices/step_5.npy", weights(5))
    T = np.arange(10, 501, 10)
    loss = 3.3 + 6 * T**-0.45 + np.random.default_rng(3).normal(0, 0.004, len(T))
    lines = [f"iter {t}: loss {value:.5f}, time 1.00ms\n" for t, value in zip(T, loss, strict=True)]
    (tmp_path / "train.nanogpt").write_text("compiling\n" + "".join(lines) + "iter 51")
    declared = '[[series]]\npath = "checkpoints"\n[[probes]]\nname = "small_weights"\n[[probes]]\nname = "controls"\n'
    (tmp_path / "study.toml").write_text(f'name = "study"\n{declared}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(beginning: str, *more: str) -> str:
    """Run the one command of the page that begins so, in this process; return what it writes."""
    (command,) = {line for line in COMMANDS if line.startswith(f"toposcope {beginning}")}
    done = called(*shlex.split(command)[1:], *more)
    assert done.code == 0, done.err
    return done.out


def test_the_page_has_an_example_of_each_group_and_imports_through_the_door_alone() -> None:
    package = Path(sources.__file__).parents[2]
    calls = re.compile(r"collect\w*\(\w+, \"(toposcope\.\w+)\"")
    groups = {group for path in package.rglob("*.py") for group in calls.findall(path.read_text(encoding="utf-8"))}
    assert {group for group in groups if f"`{group}`" in PAGE} == groups >= set(ENTRY_POINTS)
    assert groups - set(ENTRY_POINTS) <= {"toposcope.study_commands"}
    assert {name.partition(".")[2] for group in ENTRY_POINTS.values() for name in group.values()} == set(MODULES)
    nodes = [node for code in MODULES.values() for node in ast.walk(ast.parse(code))]
    imported = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("toposcope")} == {"toposcope.extend"}


def test_the_door_is_quick() -> None:
    heavy = ("torch", "numba", "altair", "polars", "numpy")
    code = f"import sys, toposcope.extend; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("installed", "work")
def test_a_probe() -> None:
    rows = network_rows(run("measure checkpoints --probe small_weights", "--json", "--workers", "1"))
    assert {(row["probe"], row["statistic"], row["kind"]) for row in rows} == {("small_weights", "share", "control")}
    shares = [(np.abs(W) <= 0.1 * np.abs(W).max()).mean() for W in map(weights, STEPS)]
    assert [row["value"] for row in rows] == pytest.approx(shares, rel=1e-12)


@pytest.mark.usefixtures("installed")
def test_an_input(work: Path) -> None:
    rows = network_rows(run("measure checkpoints --probe activation_mean", "--json", "--workers", "1"))
    assert [row["value"] for row in rows] == [0.0, 1.0, 2.0]
    (work / "checkpoints/activations_10.json").unlink()
    done = called("measure", "checkpoints", "--probe", "activation_mean", "--workers", "1")
    assert done.code == 1
    assert "no activations_10.json next to it; save one" in done.err
    assert "Traceback" not in done.err


def network_rows(output: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(output) if row["layer"] == "network"]


@pytest.mark.usefixtures("installed", "work")
def test_a_checkpoint_format() -> None:
    (row,) = json.loads(run("layers matrices", "--json"))["layers"]
    assert (row["name"], row["shape"], row["dtype"]) == ("weight", [6, 6], "float32")


@pytest.mark.usefixtures("installed", "work")
def test_a_source() -> None:
    (row,) = json.loads(run("layers zip:run.zip", "--json"))["layers"]
    assert (row["name"], row["shape"]) == (LAYER, [6, 6])
    words = ("measure", "--probe", "small_weights", "--json", "--workers", "1")
    zipped, plain = (json.loads(called(*words, spec).out) for spec in ("zip:run.zip", "checkpoints"))
    assert [row["value"] for row in zipped] == [row["value"] for row in plain]
    assert network_rows(called(*words, "zip:run.zip/step_10.safetensors").out)[0]["step"] == 10
    assert "no archive there" in called("layers", "zip:none.zip").err


@pytest.mark.usefixtures("installed", "work")
def test_a_log_format_and_a_forecaster() -> None:
    found = json.loads(run("forecast train.nanogpt", "--json"))
    assert found["forecasts"]["no_floor"]["loss"] < 3.9


@pytest.mark.usefixtures("installed")
def test_a_sink(work: Path, caplog: pytest.LogCaptureFixture) -> None:
    team, handler = logging.getLogger("team"), logging.NullHandler()
    team.addHandler(handler)
    try:
        sink = open_sinks(work, lambda _: None, quiet=True)
        sink.put(Alert("loss spike", 7, 6, "", "the loss doubled"))
        sink.close()
    finally:
        team.removeHandler(handler)
    assert [record.getMessage() for record in caplog.records if record.name == "team"] == ["step 7: the loss doubled"]


@pytest.mark.usefixtures("installed")
def test_a_command(work: Path) -> None:
    assert LAYER in run("heaviest")
    norms = json.loads(run("heaviest", "--json"))
    assert norms == {LAYER: pytest.approx(float(np.linalg.norm(weights(20))), rel=1e-6)}
    assert called("--help").out.count("heaviest") == 1


@pytest.mark.usefixtures("installed")
def test_a_module_with_a_command_can_be_imported_by_itself(site: Path) -> None:
    for name in sorted(MODULES):
        import_module(f"my_extensions.{name}")
    code = "import my_extensions.heaviest; print(my_extensions.heaviest.heaviest.name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "heaviest\n"


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_section_and_a_chart(work: Path) -> None:
    """Also: a study measures again only what an input that changed belongs to."""
    with (work / "study.toml").open("a") as declaration:
        declaration.write('[[probes]]\nname = "activation_mean"\n')
    run("study run", "--workers", "1")
    assert "of the weights of checkpoints are small" in (work / "study/report/report.md").read_text()
    assert "Share of small weights over training" in (work / "study/report/index.html").read_text()
    assert (work / "study/report/tables/small_share.csv").read_text().startswith("run,step,value\ncheckpoints,0,")
    assert (work / "study/report/figures/small-share.svg").is_file()
    before = measurements(work / "study")
    (work / "checkpoints/activations_20.json").write_text(json.dumps({LAYER: 7.0}))
    run("study run", "--workers", "1")
    after = measurements(work / "study")
    assert after["small_weights"] == before["small_weights"]  # not measured again
    assert after["activation_mean"] != before["activation_mean"]


def measurements(study: Path) -> dict[str, set[int]]:
    """Return the rows of the store by probe."""
    with sqlite3.connect(study / "study.db") as connection:
        rows = connection.execute("SELECT probe, id FROM measurements").fetchall()
    return {probe: {row for name, row in rows if name == probe} for probe, _ in rows}


@pytest.mark.slow
def test_processes_of_a_pool_know_the_package(site: Path, work: Path) -> None:
    code = "import sys; sys.argv[0] = 'toposcope'; from toposcope.cli import main; main()"
    words = ("measure", "checkpoints", "--probe", "small_weights", "--workers", "2", "--json")
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(network_rows(done.stdout)) == len(STEPS)


@pytest.mark.parametrize(
    ("group", "code", "words", "reason"),
    [
        ("probes", "import no_such_module", ("measure", "checkpoints"), "No module named 'no_such_module'"),
        ("probes", "from toposcope.probes.rips import RipsProbe", ("measure", "checkpoints"), "holds nothing to add"),
        (
            "needs",
            "from toposcope.extend import Input\nINPUT = Input('model', print, print)",
            ("measure", "checkpoints"),
            "the name 'model' is taken by toposcope",
        ),
        ("formats", "1 / 0", ("measure", "checkpoints"), "ZeroDivisionError"),
        ("sources", "1 / 0", ("measure", "checkpoints"), "ZeroDivisionError"),
        ("logs", "claims = runs = None\nraise OSError('gone')", ("forecast", "train.nanogpt"), "OSError: gone"),
        ("forecasters", "def", ("forecast", "a.csv", "--schedule", "cosine:steps=9"), "SyntaxError"),
        ("sections", "1 / 0", ("study", "run", "checkpoints", "--out", "study"), "ZeroDivisionError"),
        ("commands", "heaviest = print", ("layers", "checkpoints"), "holds nothing to add"),
    ],
)
def test_a_package_at_fault_is_refused_in_one_line(
    group: str,
    code: str,
    words: tuple[str, ...],
    reason: str,
    work: Path,
    fresh_registries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = work / "site"
    distribution(other, "careless", {f"toposcope.{group}": {"bad": "careless_module"}})
    (other / "careless_module.py").write_text(code)
    (work / "a.csv").write_text("step,loss\n1,3\n2,2.5\n3,2.25\n4,2\n5,1.9\n6,1.8\n")
    monkeypatch.syspath_prepend(other)
    done = called(*words, *(["--workers", "1"] if words[0] in ("measure", "study") else []))
    assert done.code in (1, 2)
    (line,) = [text for text in done.err.splitlines() if "careless" in text]
    assert f"careless, entry point bad = careless_module of toposcope.{group}: " in line
    assert reason in line


@pytest.fixture
def other(work: Path, monkeypatch: pytest.MonkeyPatch, fresh_registries: None) -> Path:
    """The module of another package, a log format and a forecaster, yet to be written."""
    distribution(
        work / "site",
        "careless",
        {f"toposcope.{group}": {"other": "careless_module"} for group in ("logs", "forecasters")},
    )
    monkeypatch.syspath_prepend(work / "site")
    return work / "site/careless_module.py"


OTHER = """
import polars as pl
from toposcope.extend import RawLog
ENDINGS = (".tiny",)
def looks_like(head): return head.startswith(b"#tiny")
def runs(path):
    rows = [line.split(";") for line in path.read_text().splitlines()[1:]]
    return [RawLog(path, "", pl.DataFrame(rows, schema=["step", "loss"], orient="row"))]
class Careless:
    name = "careless"
    def fit(self, log, schedule, siblings): raise ValueError("singular")
FORECASTERS = (Careless(),)
"""


@pytest.mark.parametrize("name", ["a.txt", "a.log", "a.csv", "a.xyz", "a"])
def test_a_log_is_recognised_by_its_content_before_all_else_and_a_forecaster_that_fails_stops_no_other(
    name: str, work: Path, other: Path
) -> None:
    other.write_text(OTHER)
    (work / name).write_text("#tiny\n" + "".join(f"{t};{2 + 3 * t**-0.5}\n" for t in range(10, 400, 10)))
    done = called("forecast", name, "--schedule", "cosine:steps=500", "--json")
    assert done.code == 0, done.err
    assert "careless" in json.loads(done.out)["refused"]
    assert "it failed: ValueError: singular" in done.out


def test_a_shape_may_be_a_list_and_a_statistic_that_a_layer_lacks_is_named() -> None:
    assert Entry("w", [2, 3], "float32", lambda start, stop: np.zeros((stop - start, 3))).shape == (2, 3)  # type: ignore[arg-type]
    probe: Any = SimpleNamespace(combine=lambda rows: {"kurtosis": stacked(rows, "kurtosis").mean()})
    known, layers = {"a": {"kurtosis": 3.0}, "b": {}}, [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    subject: Any = SimpleNamespace(known=known, layers=layers, wanted={NETWORK})
    (failure,) = each_layer(probe, subject, lambda layer: Measurement(layer.name, "", {}))
    assert failure == Failure(NETWORK, "not taken over the layers: 'kurtosis' is not defined in all of them")


SECTION = """
from toposcope.extend import ReportSection
def rows(material): return 1 / 0
SECTION = ReportSection(anchor="other", title="Other", position=10, tables={"other": rows})
"""
COMMAND = """
import click
@click.command()
def careless_module(): raise OSError("gone")
"""


@pytest.mark.parametrize(
    ("group", "code", "words", "reason"),
    [
        ("sections", SECTION, ("report", "study"), "ZeroDivisionError: division by zero (careless_module.py, line 3)"),
        ("commands", COMMAND, ("careless_module",), "OSError: gone (careless_module.py, line 4)"),
    ],
    ids=["section", "command"],
)
def test_what_fails_in_a_package_is_one_line_that_names_it(
    group: str, code: str, words: tuple[str, ...], reason: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called("study", "run", "checkpoints", "--out", "study", "--workers", "1").code == 0
    distribution(work / "site", "careless", {f"toposcope.{group}": {"other": "careless_module"}})
    (work / "site/careless_module.py").write_text(code)
    monkeypatch.syspath_prepend(work / "site")
    clear_registries()
    done = called(*words)
    clear_registries()
    assert done.code == 1
    assert (
        f"Error: careless, entry point other = careless_module of toposcope.{group}: {reason}" in done.err.splitlines()
    )
