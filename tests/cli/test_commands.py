"""The commands as a user types them: what they print and write, exit codes 0, 1, 2 and 130."""

import csv
import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import polars as pl
import pytest
import safetensors.torch
import torch
from commands import Done, called, complaint_of, complaints, fail, installed, succeed
from public_names import commands
from small_studies import Trap
from three_checkpoints import SHAPES, weights, write_series

import toposcope
from toposcope.cli.options import parse_options
from toposcope.probes import make_probes, probe_types

SETTINGS = "steps=30,batch_size=4,warmup_steps=4,checkpoint_every=10"
CONTROLS = ("--probe", "controls", "--workers", "1")


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_series(tmp_path_factory.mktemp("series") / "found")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat"]) for _ in range(3000)))
    return path


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, Done]:
    """A folder that `train` was to fill, and what it said."""
    out = tmp_path_factory.mktemp("trained") / "study"
    return out, called("train", "tiny-3k", "--corpus", text, "--out", out, "--set", SETTINGS, "--workers", "1")


@pytest.fixture(scope="module")
def trained(training: tuple[Path, Done]) -> Path:
    """What `train` left, after it was seen to have worked."""
    out, done = training
    assert (done.code, complaints(done)) == (0, [])
    return out


@pytest.mark.parametrize("path", [context.command_path for _, context in commands()])
def test_help(path: str) -> None:
    words = path.split()[1:]
    text = succeed(*words, "--help")
    assert text.startswith(f"Usage: {path} ")
    assert succeed(*words, "-h") == text


def test_the_help_of_measure_lists_the_probes_of_its_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "measure.md"
    documented = set(re.findall(r"^\| \[`(\w+)`\]", page.read_text(), re.MULTILINE))
    listed = succeed("measure", "--help").partition("Probes and the defaults")[2]
    of_others = {name for name, kind in probe_types().items() if not kind.__module__.startswith("toposcope.")}
    assert set(re.findall(r"^  (\w+) ", listed, re.MULTILINE)) - of_others == documented


def test_version() -> None:
    assert succeed("--version", by=installed).strip().endswith(toposcope.__version__)


@pytest.mark.parametrize(
    "program",
    ["import toposcope", "import toposcope.cli", "import toposcope.cli; toposcope.cli.main()"],
    ids=["the library", "the commands", "help"],
)
def test_heavy_packages_are_left_alone_until_they_are_needed(program: str) -> None:
    heavy = [
        "torch",
        "numba",
        "scipy",
        "altair",
        "vl_convert",
        "polars",
        "numpy",
        "gudhi",
        "sklearn",
        "rich",
        "tokenizers",
    ]
    told = (
        f"import atexit, sys\nsys.argv = ['toposcope', '--help']\n"
        f"atexit.register(lambda: print('found', [name for name in {heavy} if name in sys.modules]))\n{program}"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "found []"


def test_train_writes_checkpoints_and_tells_where_with_a_line_as_each_thing_begins_and_ends(
    training: tuple[Path, Done],
) -> None:
    out, done = training
    run = out / "runs" / "tiny-3k"
    assert done.out == f"{run}\n"
    names = [f"step_{step:06d}.safetensors" for step in (0, 10, 20, 30)]
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == names
    assert len((run / "log.csv").read_text().splitlines()) == 32
    assert done.err.splitlines() == [
        "corpus: started, 1 to do",
        "corpus: done",
        "tiny-3k: started, 30 to do",
        "tiny-3k: done",
        "read: started, 63.4 kB to do",
        "read: done",
    ]


def test_training_again_does_nothing(trained: Path, text: Path) -> None:
    files = [path for path in (trained / "runs").rglob("*.*") if path.name != ".lock"]
    times = {path: path.stat().st_mtime_ns for path in files}
    succeed("train", "tiny-3k", "--corpus", text, "--out", trained, "--set", SETTINGS, "--workers", "1")
    assert {path: path.stat().st_mtime_ns for path in files} == times


@pytest.mark.slow
def test_measure_prints_a_summary_and_writes_a_table(series: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.csv"
    printed = succeed("measure", series, "--out", out, "--workers", "1", by=installed)
    assert "np_mean" in printed
    assert "H0.total" in printed
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"found"}
    assert {int(row["step"]) for row in rows} == {0, 10, 20}
    assert {row["probe"] for row in rows} == {"neural_persistence", "rips", "controls", "distances"}
    assert all(math.isfinite(float(row["value"])) for row in rows)
    # What made the work resumable is gone when it is done.
    assert sorted(tmp_path.iterdir()) == [out, out.with_name("features.csv.study")]


def test_layers_whose_loops_are_of_landmarks_are_named(series: Path) -> None:
    done = called("measure", series, "--probe", "rips:max_points=5", "--workers", "1")
    (line,) = complaints(done)
    assert line.startswith(f"note: {len(SHAPES)} layers (")
    assert "...): H1 is computed from landmarks" in line
    assert complaints(called("measure", series, "--probe", "rips:max_points=500", "--workers", "1")) == []


def test_json_parquet_and_python_agree(series: Path, tmp_path: Path) -> None:
    out = tmp_path / "features.parquet"
    printed = succeed("measure", series, "--out", out, "--json", "--probe", "rips", "--workers", "1")
    rows: list[dict[str, Any]] = json.loads(printed)
    assert pl.read_parquet(out).to_dicts() == rows
    assert toposcope.measure(series, probes=[{"name": "rips"}]).to_dicts() == rows


def test_a_command_that_fails_still_prints_valid_json(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found")
    path = found / "step_010.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    done = called("measure", found, "--json", *CONTROLS)
    assert done.code == 1
    assert {row["step"] for row in json.loads(done.out)} == {0, 20}


def test_probes_and_their_options(series: Path) -> None:
    printed = succeed(
        "measure",
        series,
        "--json",
        "--workers",
        "1",
        "--probe",
        "neural_persistence:scale=network,p=3",
        "--probe",
        "rips:pooled=true,threshold=2.0,max_dimension=0",
    )
    found = {(row["probe"], row["options"]) for row in json.loads(printed)}
    assert found == {
        ("neural_persistence", '{"essential":"drop","p":3.0,"scale":"network"}'),
        (
            "rips",
            '{"draws":1,"max_dimension":0,"max_points":null,"pooled":true,"sample":"farthest","seed":42,"significant":1.0,"threshold":2.0}',
        ),
    }


def test_series_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    first, second = (write_series(tmp_path / name / "my checkpoints", seed) for seed, name in enumerate(("one", "two")))
    rows = json.loads(succeed("measure", first, second, "--json", *CONTROLS))
    assert list(dict.fromkeys(row["run"] for row in rows)) == ["one-my checkpoints", "two-my checkpoints"]
    norms = {row["run"]: row["value"] for row in rows if row["statistic"] == "frobenius_norm"}
    assert len(set(norms.values())) == 2


@pytest.mark.parametrize("name", ["größe", "日本", "_private"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert json.loads(succeed("measure", write_series(tmp_path / name), "--json", *CONTROLS))


def test_a_relative_path(series: Path) -> None:
    assert {row["run"] for row in json.loads(succeed("measure", ".", "--json", *CONTROLS, cwd=series))} == {"found"}


def test_bad_checkpoints_are_told_and_the_rest_is_measured(tmp_path: Path) -> None:
    truncated, nan, pickled = (write_series(tmp_path / name) for name in ("truncated", "nan", "pickled"))
    path = truncated / "step_010.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    ruined = weights(10)
    ruined["layers.0.mlp.fc1.weight"][0, 0] = math.nan
    safetensors.torch.save_file(ruined, nan / "step_010.safetensors")
    (pickled / "step_010.safetensors").unlink()
    torch.save({"model": Trap(tmp_path / "executed")}, pickled / "step_010.pt")
    (tmp_path / "empty").mkdir()

    out = tmp_path / "features.csv"
    folders = [truncated, nan, pickled, tmp_path / "empty"]
    kept = tmp_path / "features.csv.study"
    lines = fail("measure", *folders, "--out", out, "--probe", "controls", "--workers", "1", note=str(kept))
    assert not (tmp_path / "executed").exists()
    by_run = {name: [line for line in lines if line.startswith(f"Error: {name}")] for name in (f.name for f in folders)}
    assert sum(map(len, by_run.values())) == len(lines)
    assert [len(by_run[name]) for name in ("truncated", "pickled", "empty")] == [1, 1, 1]
    assert "step_010.safetensors: truncated or damaged" in by_run["truncated"][0]
    assert "step_010.pt" in by_run["pickled"][0]
    assert "nothing was executed" in by_run["pickled"][0]
    assert "no checkpoints" in by_run["empty"][0]
    assert "layers.0.mlp.fc1.weight" in by_run["nan"][0]
    assert "NaN" in by_run["nan"][0]

    found = pl.read_csv(out).select("run", "step", "layer").unique()
    whole = {*SHAPES, "network"}
    for name in ("truncated", "nan", "pickled"):
        for step in (0, 20):
            assert set(found.filter(run=name, step=step)["layer"]) == whole
    assert set(found.filter(run="nan", step=10)["layer"]) == whole - {"layers.0.mlp.fc1.weight", "network"}
    assert found.filter(step=10)["run"].unique().to_list() == ["nan"]

    # Mended, the same command takes up the work it kept, and is told of no error any more.
    assert kept.is_dir()
    for folder in (truncated, nan, pickled):
        safetensors.torch.save_file(weights(10), folder / "step_010.safetensors")
        (folder / "step_010.pt").unlink(missing_ok=True)
    shutil.copy(truncated / "step_010.safetensors", tmp_path / "empty")
    succeed("measure", *folders, "--out", out, "--probe", "controls", "--workers", "1")
    assert pl.read_csv(out)["layer"].unique().sort().to_list() == sorted(whole)


def test_an_empty_folder_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, by in ((["measure"], installed), (["doctor"], called), (["doctor", "--deep", "--json"], called)):
        line = complaint_of(*words, tmp_path / "empty", by=by)
        assert str(tmp_path / "empty") in line
        assert "no checkpoints" in line


@pytest.mark.parametrize(
    "words",
    [("doctor", "{series}"), ("measure", "{series}", *CONTROLS), ("show", "{tmp}"), ("study", "status", "{tmp}")],
    ids=lambda words: words[0],
)
def test_an_interrupted_command_ends_with_130(words: tuple[str, ...], series: Path, tmp_path: Path) -> None:
    """Wherever Ctrl-C comes: here as the first module of the command's own is imported."""
    program = (
        "import sys, toposcope.cli as cli\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('toposcope.') and not name.startswith('toposcope.cli'): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "cli.main()"
    )
    filled = [word.format(series=series, tmp=tmp_path) for word in words]
    done = subprocess.run([sys.executable, "-c", program, *filled], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_the_live_page_with_130(tmp_path: Path) -> None:
    arguments = [str(Path(sys.executable).with_name("toposcope")), "show", str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].split("?")
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line, process.stderr
        with urlopen("?".join([f"{address[0]}events", *address[1:]]), timeout=60) as stream:
            assert stream.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert process.stderr is not None
        assert not process.stderr.read()  # nothing of the stream that is still open


def test_without_a_table_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could take up the work again: the next command would not know of it."""
    found = write_series(tmp_path / "found")
    (found / "step_010.safetensors").write_bytes(b"broken")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert called("measure", found, *CONTROLS).code == 1
    assert list(scratch.iterdir()) == []


def test_a_missing_path_is_bad_use(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    assert absent in complaint_of("measure", absent)
    assert absent in complaint_of("study", "run", absent)
    assert absent in complaint_of("study", "status", absent)
    assert absent in complaint_of("report", absent)
    assert absent in complaint_of("export", absent)


def test_a_missing_argument_or_option_is_bad_use(series: Path) -> None:
    assert "SERIES" in complaint_of("measure")
    assert "SIZES" in complaint_of("train")
    assert "FILE" in complaint_of("study", "run")
    assert "--wrokers" in complaint_of("measure", series, "--wrokers", "2")
    assert "--workers" in complaint_of("measure", series, "--workers", "0")
    assert "'meassure'" in complaint_of("meassure", series)
    assert "'pooled'" in complaint_of("measure", series, "--probe", "rips:pooled")
    assert "features.xls" in complaint_of("measure", series, "--out", "features.xls")
    assert "twice" in complaint_of("measure", series, series.parent / "found")
    assert "--format" in complaint_of("export", series, "--format", "xls")


def test_an_unknown_probe_is_bad_use_with_the_known_ones(series: Path) -> None:
    line = complaint_of("measure", series, "--probe", "ripz", by=installed)
    assert "'ripz'" in line
    assert "rips" in line.replace("ripz", "")


def test_an_unknown_option_of_a_probe_is_bad_use_with_the_known_ones(series: Path) -> None:
    line = complaint_of("measure", series, "--probe", "rips:max_dim=1")
    assert "'max_dim'" in line
    assert "max_dimension" in line


def test_a_list_of_values_of_a_probe(trained: Path, text: Path) -> None:
    probe = "hidden_states:layers=[0,1],texts=2,length=10,scales=[0.5,1],points=tokens"
    words = ("measure", trained, "--probe", probe, "--text", text, "--steps", "0", "--workers", "1", "--json")
    frame = json.loads(succeed(*words))
    assert {"H0.betti@0.5", "H0.betti@1"} <= {row["statistic"] for row in frame}
    assert "hidden.00" in {row["layer"] for row in frame}
    # What a table calls it is understood again.
    (made,) = make_probes([{"name": "hidden_states", **parse_options(probe.partition(":")[2], "")}])
    name, _, options = made.label().partition(":")
    assert make_probes([{"name": name, **parse_options(options, "")}]) == [made]
    assert options == "layers=[0.0,1.0],texts=2,length=10,scales=[0.5,1.0]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--probe", "hidden_states"], ["hidden_states reads a text", "--text"]),
        (["--probe", "language_modelling", "--text", "absent.txt"], ["--text absent.txt", "no such file"]),
        (["--text", "README.md"], ["README.md", "no such file"]),
        (["--probe", "hidden_states", "--text", "python-docs", "--tokenizer", "absent"], ["--tokenizer absent"]),
        (["--text", "python-docs"], ["text python-docs", "none of the probes reads a text"]),
        (["--probe", "hidden_states:layers=[0,2]", "--text", "python-docs"], ["layers is [0.0, 2.0]", "0 and 1"]),
        (["--probe", "hidden_states:scales=0.5", "--text", "python-docs"], ["scales", "array"]),
    ],
)
def test_a_text_that_does_not_go_with_the_probes_is_bad_use(
    series: Path, tmp_path: Path, options: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = complaint_of("measure", series, *options)
    assert [word for word in words if word not in message] == [], message


def test_an_unknown_size_is_bad_use_with_the_known_ones(tmp_path: Path) -> None:
    line = complaint_of("train", "huge-1t", "--out", tmp_path / "out")
    assert "'huge-1t'" in line
    assert "tiny-3k" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("step=5", ["step", "steps", "batch_size"]),
        ("steps=many", ["steps", "int"]),
        ("steps=0", ["steps", "at least 1"]),
        ("steps", ["'steps'", "option=value"]),
    ],
)
def test_a_bad_setting_is_bad_use(tmp_path: Path, setting: str, words: list[str]) -> None:
    line = complaint_of("train", "tiny-3k", "--out", tmp_path / "out", "--set", setting)
    assert [word for word in words if word not in line] == []
    assert not (tmp_path / "out").exists()


def test_a_misspelled_field_of_a_study_is_bad_use(tmp_path: Path) -> None:
    declared = tmp_path / "study.toml"
    declared.write_text('name = "x"\n[training]\nstep = 5\n[[runs]]\nsize = "tiny-3k"\n')
    line = complaint_of("study", "run", declared, "--out", tmp_path / "out")
    assert line.startswith(f"Error: {declared}: unknown field 'step'")
    assert "steps" in line
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_not_there_fails_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "study"
    (line,) = fail("train", "tiny-3k", "--corpus", tmp_path / "absent.txt", "--out", out, "--workers", "1")
    assert "tiny-3k" in line
    assert "absent.txt" in line
    # The study keeps the error, and its status is told by the same exit code.
    done = called("study", "status", out)
    assert done.code == 1
    assert "absent.txt" in done.out
    told = called("study", "status", out, "--json")
    assert told.code == 1
    assert json.loads(told.out)["errors"][0]["run"] == "tiny-3k"


def test_status_of_a_study_that_is_well(trained: Path) -> None:
    printed = succeed("study", "status", trained)
    assert "tiny-3k" in printed
    assert "complete" in printed
    told = json.loads(succeed("study", "status", trained, "--json"))
    assert told["errors"] == []
    (run,) = told["runs"]
    assert (run["run"], run["status"], run["last_step"], run["n_checkpoints"]) == ("tiny-3k", "complete", 30, 4)
    assert run["n_parameters"] == 2936


@pytest.mark.parametrize("words", [("study", "status"), ("report",), ("export",)], ids=" ".join)
def test_a_folder_without_a_study_fails_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    line = complaint_of(*words, tmp_path)
    assert str(tmp_path) in line
    assert "no study here" in line


def test_export(trained: Path, tmp_path: Path) -> None:
    printed = succeed("export", trained, "--out", tmp_path / "csv", "--format", "csv")
    names = ["features", "log", "checkpoints", "runs", "errors", "findings", "alerts", "forecasts"]
    assert [line.split(" ")[0] for line in printed.splitlines()] == [str(tmp_path / "csv" / f"{n}.csv") for n in names]
    with (tmp_path / "csv" / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(31))
    # An empty table has its columns all the same.
    assert (tmp_path / "csv" / "errors.csv").read_text().startswith("run,step,layer,probe,message")

    succeed("export", trained)
    log = pl.read_parquet(trained / "export" / "log.parquet")
    assert log["step"].to_list() == list(range(31))
    assert log["loss"].to_list()[1:] == [float(row["loss"]) for row in rows[1:]]
