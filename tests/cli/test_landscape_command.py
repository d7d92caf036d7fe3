"""``toposcope landscape``: what it prints, writes and refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import called, complaint_of
from small_models import save, some_lines

from toposcope.family.model import build
from toposcope.models.loss_planes import Estimate
from toposcope.probes.landscape import LandscapeProbe
from toposcope.study.landscape_report import STATISTIC_NAMES, LandscapeReport

OPTIONS = ("--resolution", "9", "--seeds", "2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints on a curved path, and a text beside them."""
    folder = tmp_path_factory.mktemp("run")
    first, turn, last = (build("tiny-3k", seed=seed, initial_scale=4.0) for seed in (0, 1, 2))
    for step in (0, 10, 20):
        model = build("tiny-3k")
        with torch.no_grad():
            for parameter, a, b, c in zip(
                model.parameters(), first.parameters(), turn.parameters(), last.parameters(), strict=True
            ):
                parameter.copy_({0: a, 10: (a + b) / 2, 20: (b + c) / 2}[step])
        save(model, folder / "checkpoints", step)
    (folder / "text.txt").write_text(some_lines(12))
    return folder


def test_random_planes(run: Path) -> None:
    done = called("landscape", run / "checkpoints", "--step", "10", "--text", run / "text.txt", *OPTIONS, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["step"], found["directions"], found["planes"]) == (10, "random", 2)
    assert 7 * 127 < found["n_tokens"] <= 8 * 127
    assert 4 < found["loss"] < 6
    assert found["statistics"].keys() <= STATISTIC_NAMES.keys()
    ranges = found["statistics"]["range"]
    assert ranges["planes"] == 2
    assert all(ranges[f"noise_{what}"] > 0 for what in ("planes", "batches", "resolution"))
    again = called("landscape", run / "checkpoints", "--step", "10", "--text", run / "text.txt", *OPTIONS, "--json")
    assert again.out == done.out


def test_what_is_said(run: Path) -> None:
    done = called("landscape", run / "checkpoints" / "step_20.safetensors", "--text", run / "text.txt", *OPTIONS)
    assert done.code == 0
    assert done.out.startswith("step 20: ")
    assert "2 planes of 9 x 9 points along random filter-normalised directions, span 1" in done.out
    assert STATISTIC_NAMES["range"] in done.out
    assert "between two planes: bottleneck" in done.out
    assert "Traceback" not in done.err


def test_the_headline_counts_losses_that_are_not_finite(run: Path) -> None:
    where = run / "checkpoints" / "step_20.safetensors"
    done = called("landscape", where, "--text", run / "text.txt", *OPTIONS, "--span", "1e30")
    assert done.code == 0
    assert "points have no finite loss" in done.out.splitlines()[0]


def test_the_plane_of_the_path_and_its_figure(run: Path, tmp_path: Path) -> None:
    done = called(
        *("landscape", run / "checkpoints", "--directions", "trajectory", "--text", run / "text.txt"),
        *("--resolution", "9", "--out", tmp_path / "path.svg"),
    )
    assert done.code == 0, done.err
    assert "the plane holds 100% of the squared distances" in done.err
    assert "one plane: nothing is known of the spread over planes" in done.err
    assert done.out.splitlines()[-1] == f"figure: {tmp_path / 'path.svg'}"
    assert "component of the path" in (tmp_path / "path.svg").read_text()


def test_a_checkpoint_that_is_not_finite_is_left_out_of_the_path(run: Path, tmp_path: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        shutil.copy(path, tmp_path)
    broken = build("tiny-3k")
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    save(broken, tmp_path, 15)
    done = called(
        *("landscape", tmp_path, "--directions", "trajectory", "--text", run / "text.txt", "--resolution", "7"),
        "--json",
    )
    assert done.code == 0, done.err
    remarks = json.loads(done.out)["remarks"]
    assert "left out of the path, weights that are not finite: step 15" in remarks


def test_what_half_the_resolution_does_not_define_is_said() -> None:
    estimates = {"average_persistence": Estimate(0.5, 1, batches=0.1), "range": Estimate(2.0, 1, resolution=0.1)}
    report = LandscapeReport("a", 2.0, LandscapeProbe(), (), estimates, {}, [])
    assert report.remarks() == ["convergence unknown, undefined at half the resolution: average persistence"]


@pytest.mark.slow
def test_a_figure_of_eigenvectors(run: Path, tmp_path: Path) -> None:
    done = called(
        *("landscape", run / "checkpoints", "--directions", "hessian", "--text", run / "text.txt"),
        *("--resolution", "9", "--out", tmp_path / "plane.svg"),
    )
    assert done.code == 0, done.err
    assert (tmp_path / "plane.svg").read_text().startswith("<svg")
    assert "largest eigenvalue of the Hessian" in done.out
    assert "numerical error" in done.out
    assert "of 1 planes" not in done.err


def test_a_spread_over_the_text_that_is_larger_than_the_number_is_said() -> None:
    estimates = {
        "max_persistence": Estimate(0.001, 1, batches=0.01),
        "range": Estimate(0.5, 1, batches=0.1),
        "saddles": Estimate(0.0, 1, batches=0.1),
    }
    report = LandscapeReport("here", 2.0, LandscapeProbe(directions="hessian"), [], estimates, {}, [])
    assert (
        f"spread over parts of the text larger than the mean: {STATISTIC_NAMES['max_persistence']}" in report.remarks()
    )


def test_mistakes(run: Path, tmp_path: Path) -> None:
    text = ("--text", run / "text.txt")
    assert "no such file" in complaint_of("landscape", tmp_path / "nothing")
    assert "no such file" in complaint_of("landscape", run / "checkpoints", "--text", tmp_path / "nothing.txt")
    for out in ("plane.jpg", tmp_path / "a-folder"):
        said = complaint_of("landscape", run / "checkpoints", *text, "--out", out)
        assert "a figure ends in .svg, .png, .pdf" in said
    assert "finite and above 0" in complaint_of("landscape", run / "checkpoints", *text, "--span", "nan")
    planes = ("--directions", "hessian", "--seeds", "2")
    assert "there is one plane along these" in complaint_of("landscape", run / "checkpoints", *text, *planes)
    (tmp_path / "letter").write_text("a")
    for command in (("landscape",), ("measure", "--probe", "language_modelling")):
        done = called(*command, run / "checkpoints", "--text", tmp_path / "letter")
        (line,) = [line for line in done.err.splitlines() if "Error" in line]
        assert done.code
        assert "one character has no next one to predict; give a longer text" in line
    for arguments, words in (
        (("--step", "15"), "its steps are 0, 10, 20"),
        (("--directions", "trajectory"), "step_20.safetensors has 0; name the folder of a longer series"),
    ):
        place = run / "checkpoints" if "--step" in arguments else run / "checkpoints" / "step_20.safetensors"
        done = called("landscape", place, *text, *arguments)
        (line,) = done.err.splitlines()
        assert done.code == 2
        assert line.startswith("Error: ")
        assert words in line
