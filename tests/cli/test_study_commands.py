"""The commands of whole studies, declared or imported: what they print and write."""

import json
import random
from pathlib import Path

import pytest
from commands import called, complaint_of, complaints, installed, succeed
from three_checkpoints import write_series

import toposcope


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat"]) for _ in range(3000)))
    return path


def declare(folder: Path, text: Path, probes: list[str]) -> Path:
    declared = folder / "declared.toml"
    declared.write_text(
        f"""
name = "mine"
[corpus]
source = "{text}"
[training]
steps = 60
warmup_steps = 4
batch_size = 4
checkpoint_every = 10
[[runs]]
size = "tiny-3k"
[[runs]]
size = {{hidden = 8, layers = 1, heads = 2}}
name = "other"
training = {{seed = 3}}
"""
        + "".join(f'[[probes]]\nname = "{probe}"\n' for probe in probes)
    )
    return declared


@pytest.mark.slow
def test_a_whole_study(tmp_path: Path, text: Path) -> None:
    declared = declare(tmp_path, text, ["neural_persistence", "rips", "controls", "distances", "gradient_rips"])
    printed = succeed("study", "run", declared, "--workers", "1", cwd=tmp_path, by=installed)
    # Without --out the folder has the name of the study.
    out = tmp_path / "mine"
    assert (out / "study.db").is_file()
    place = printed.splitlines()[-1]
    assert place.startswith("report: ")
    page = Path(place.removeprefix("report: "))
    assert page.is_file()
    assert out in page.parents
    # The verdict comes first: whoever reads one line reads that.
    assert len(printed.splitlines()) > 1
    ids = toposcope.Study.load(out).frame()
    again = succeed("study", "run", declared, "--workers", "1", cwd=tmp_path)
    assert again.splitlines()[0].startswith("Nothing to do")
    assert again.splitlines()[-1] == place
    assert toposcope.Study.load(out).frame().rows() == ids.rows()
    assert succeed("report", out).splitlines()[-1] == place


def test_a_study_with_a_bad_checkpoint_reports_the_rest(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found")
    (found / "step_020.safetensors").write_bytes(b"broken")
    declared = tmp_path / "declared.toml"
    declared.write_text('name = "mine"\n[[series]]\npath = "found"\n[[probes]]\nname = "neural_persistence"\n')
    done = called("study", "run", declared, "--out", tmp_path / "out", "--workers", "1")
    (line,) = complaints(done)
    assert line.startswith("Error: found step 20: read: ")
    assert done.code == 1
    assert any(text.startswith("report: ") for text in done.out.splitlines())
    assert toposcope.Study.load(tmp_path / "out").runs()["n_parameters"].item() > 0  # of the last one that is whole


def write_published(folder: Path) -> Path:
    """A published run: checkpoints, features, and a file that is neither."""
    write_series(folder / "mine")
    rows = [{"step": step, "loss": 5 - step / 10, "h0_total": float(step)} for step in (0, 10, 20)]
    (folder / "features.json").write_text(json.dumps({"mine": rows, "other": rows}))
    (folder / "machine.json").write_text('{"host": 3}')
    return folder


@pytest.mark.slow
def test_a_published_study_is_taken_on_and_then_measured(tmp_path: Path) -> None:
    write_published(tmp_path / "published")
    done = installed("study", "import", "published", "--workers", "1", cwd=tmp_path)
    (note,) = complaints(done)
    assert note.startswith("note: left out: ")
    assert "machine.json" in note
    assert done.code == 0
    out = tmp_path / "published-study"
    assert done.out.splitlines()[-1] == f"report: {out / 'report' / 'index.html'}"
    told = json.loads(succeed("study", "status", out, "--json"))
    assert [(run["kind"], run["measured"]) for run in told["runs"]] == [("series", 0), ("published", 0)]
    succeed("study", "run", out / "study.toml", "--out", out, "--workers", "1")
    told = json.loads(succeed("study", "status", out, "--json"))
    assert [run["measured"] for run in told["runs"]] == [3, 0]


@pytest.mark.parametrize("content", ["", "{"])
def test_a_folder_with_nothing_to_take_on_is_bad_use(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty").mkdir()
    if content:
        (tmp_path / "empty" / "features.json").write_text(content)
    line = complaint_of("study", "import", tmp_path / "empty", "--out", tmp_path / "out")
    assert str(tmp_path / "empty") in line
    assert not (tmp_path / "out").exists()


def test_a_study_is_not_put_into_the_folder_it_is_taken_from(tmp_path: Path) -> None:
    folder = write_published(tmp_path / "published")
    assert "--out" in complaint_of("study", "import", folder, "--out", folder)
    assert not (folder / "study.toml").exists()
