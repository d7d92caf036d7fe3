"""A study of checkpoints without a declaration: begun from a folder, from what was measured, from a drafted file."""

from pathlib import Path

import pytest
import torch
from commands import called, complaint_of
from safetensors.torch import save_file
from small_studies import write_series

import toposcope as ts
from toposcope.report.writing import Answer
from toposcope.study import load_declaration, tasks

STEPS = [0, 5, 20, 30, 40, 50]
PROBES = {"neural_persistence", "rips", "controls", "distances"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints with a log beside them, in the folder where commands are called."""
    place = write_series(tmp_path / "found", STEPS)
    rows = "".join(f"{step},{4 / (1 + step):.4f}\n" for step in range(51))
    (place / "log.csv").write_text("step,loss\n" + rows)
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks of this process, which one worker is."""
    seen: list[str] = []
    for name in ("measure_tasks", "read_tasks"):
        function = getattr(tasks, name)

        def counted(task: object, function: object = function, name: str = name) -> object:
            seen.append(name)
            return function(task)  # type: ignore[operator]

        monkeypatch.setattr(f"toposcope.study.survey.{name}", counted)
    return seen


@pytest.fixture
def small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without its charts, which take most of the time and are tested with the report."""

    def written(study: ts.Study, *_: object) -> tuple[Path, Answer]:
        page = study.directory / "report" / "index.html"
        page.parent.mkdir(exist_ok=True)
        page.write_text("a page")
        return page, Answer("", "", "", ())

    monkeypatch.setattr("toposcope.report.write_report", written)


def run(*arguments: str | Path) -> str:
    done = called("study", "run", *arguments, "--workers", "1")
    assert done.code == 0, done.err
    return done.out


@pytest.mark.slow
def test_a_folder_is_enough(folder: Path) -> None:
    out = run("found")
    assert f"report: {Path('found-study/report/index.html').resolve()}" in out
    study = ts.Study.load("found-study")
    assert study.checkpoints()["step"].to_list() == STEPS
    assert set(study.frame()["probe"]) == PROBES
    assert len(study.log()) == 51


def test_the_second_time_there_is_nothing_to_do(folder: Path, small_page: None, measured: list[str]) -> None:
    run("found")
    page = Path("found-study/report/index.html")
    before = page.stat().st_mtime_ns
    measured.clear()
    for place in ("found", "found-study"):  # the study's own folder stands for it
        out = run(place).splitlines()
        assert out[0].startswith("Nothing to do")
        assert out[1] == f"report: {page.resolve()}"
    assert (measured, page.stat().st_mtime_ns) == ([], before)


def test_what_changes_is_measured_and_reported(folder: Path, small_page: None, measured: list[str]) -> None:
    run("found")
    write_series(folder, [60])
    measured.clear()
    assert "Nothing to do" not in run("found")
    assert measured.count("read_tasks") == 1
    assert ts.Study.load("found-study").checkpoints()["step"].to_list() == [*STEPS, 60]
    assert "Nothing to do" in run("found")
    (folder / "log.csv").write_text("step,loss\n0,4.0\n50,1.0\n")
    assert "Nothing to do" not in run("found")


def test_measuring_again_measures_only_what_is_new(folder: Path, small_page: None, measured: list[str]) -> None:
    assert called("measure", "found", "--out", "table.csv", "--workers", "1").code == 0
    before = Path("table.csv").read_bytes()
    measured.clear()
    assert called("measure", "found", "--out", "table.csv", "--workers", "1").code == 0
    run("table.csv.study")
    assert (measured, Path("table.csv").read_bytes()) == ([], before)


def test_a_drafted_declaration_runs_as_it_is(folder: Path, small_page: None) -> None:
    done = called("study", "init", "found", "--every", "2")
    assert done.code == 0, done.err
    assert "6 checkpoints" not in done.out
    declaration = load_declaration("found-study.toml")
    assert declaration.name == "found-study"
    assert declaration.series[0].every == 2
    assert Path(declaration.series[0].path) == folder
    run("found-study.toml")
    assert ts.Study.load("found-study").checkpoints()["step"].to_list() == STEPS[::2]


def test_every_comment_of_a_drafted_declaration_is_valid(folder: Path) -> None:
    assert called("study", "init", "found", "--out", "mine.toml").code == 0
    lines = Path("mine.toml").read_text().splitlines()
    sentences = [i for i, line in enumerate(lines) if line.startswith("# ") and " = " not in line and "[" not in line]
    edited = [line.removeprefix("# ") for i, line in enumerate(lines) if i not in sentences]
    Path("mine.toml").write_text("\n".join(edited))
    declaration = load_declaration("mine.toml")
    assert declaration.series[0].log_spaced == 20
    assert declaration.probes == [{"name": "neural_persistence"}]
    assert declaration.text.source.endswith("book.txt")


def test_a_file_is_not_written_over(folder: Path) -> None:
    Path("mine.toml").write_text("kept")
    assert "--out" in complaint_of("study", "init", "found", "--out", "mine.toml")
    assert Path("mine.toml").read_text() == "kept"


@pytest.mark.parametrize(
    "arguments",
    [
        ["study", "run", "empty"],
        ["study", "run", "nothing"],
        ["study", "run", "bad.toml"],
        ["study", "init", "empty"],
        ["measure", "empty", "--out", "table.csv"],
        ["study", "run", "found", "--steps", "3"],
    ],
    ids=" ".join,
)
def test_a_bad_series_writes_nothing(folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.toml").write_text("name = 'bad'\n[[series]]\npath = 'empty'\n")
    before = sorted(tmp_path.rglob("*"))
    done = called(*arguments)
    assert done.code in (1, 2)
    (line,) = done.err.splitlines()
    assert line.startswith("Error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_checkpoints_that_cannot_be_read_give_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken").mkdir()
    for step in (0, 10):
        Path(f"broken/step_{step}.safetensors").write_bytes(b"no weights")
    done = called("study", "run", "broken", "--workers", "1")
    assert done.code == 1
    assert "Error: broken step 0: read: " in done.err
    assert not Path("broken-study/report").exists()
    assert called("measure", "broken", "--out", "table.csv", "--workers", "1").code == 1
    assert not Path("table.csv").exists()


MEMBERS = ("constructor", "toString", "__proto__", "hasOwnProperty", "valueOf", "__defineGetter__")
ODD_NAMES = (
    *MEMBERS, "prototype", "a'b", 'a"b', "<b>x", "{{7+7}}", "{% raw %}", "${x}", "`x`", "%s", "[x]", "a.b", "a,b",
    "a|b", "a;b", "  leading", "trailing  ", ".hidden", "con", "nul", "null", "None", "NaN", "1e5", "0", "=1+1", "@x",
    "#", "~", "$&", "-x", "--out", "&lt;", "émigré", "日本語", "🙂", "x" * 60,
    "語" * 60,
)  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [MEMBERS[:3], *(pytest.param(ODD_NAMES[3 + k :: 4], marks=pytest.mark.slow) for k in range(4))],
    ids=["members", *"1234"],
)
def test_any_name_of_a_run_and_a_layer_has_a_report(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of runs, layers, and the folder; Vega and the page's script keep dictionaries by these names."""
    random = torch.Generator().manual_seed(0)
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        for step in range(0, 60, 10):
            layers = (f"{name}.weight", "blocks.0.fc1.weight")
            weights = {layer: torch.randn(8, 8, generator=random) * (1 + step) for layer in layers}
            save_file(weights, tmp_path / "runs" / name / f"step_{step}.safetensors")
        rows = "".join(f"{step},{4 / (1 + step):.4f}\n" for step in range(51))
        (tmp_path / "runs" / name / "log.csv").write_text("step,loss\n" + rows)
    run(*(tmp_path / "runs" / name for name in names), "--out", tmp_path / "out")
    assert (tmp_path / "out/report/index.html").stat().st_size > 1 << 20
    frame = ts.Study.load(tmp_path / "out").frame()
    assert set(frame["run"].unique()) == set(names)
    assert {f"{name}.weight" for name in names} <= set(frame["layer"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x" * 244, "語" * 81 + "x", "🙂" * 61], ids=["letters", "characters", "emoji"])
def test_names_of_255_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of checkpoints, folders, logs and what is written: no file system takes the longer temporary names."""
    series = write_series(tmp_path / "found", STEPS)
    file = tmp_path / name / f"{name[: 240 // len(name[0].encode())]}1.safetensors"
    file.parent.mkdir()
    file.write_bytes(next(iter(sorted(series.rglob("*.safetensors")))).read_bytes())
    log = file.parent / f"{name}.csv"
    log.write_text("step,loss\n" + "".join(f"{step},{4 / (1 + step):.4f}\n" for step in range(51)))
    monkeypatch.chdir(tmp_path)
    for command in (
        ["layers", file],
        ["doctor", file.parent],
        ["measure", file, "--out", f"{name}.csv", "--workers", "1"],
        ["measure", file.parent, "--workers", "1"],
        ["study", "init", file, "--out", f"{name}.toml"],
        ["study", "run", f"{name}.toml", "--out", "s" + name, "--workers", "1"],
        ["forecast", log, "--steps", "100", "--out", f"{name}.svg"],
    ):
        done = called(*command)
        assert done.code == 0, (command[:2], done.err)
    assert "file name too long" in called("forecast", log, "--steps", "100", "--out", f"{name}{name}.svg").err
